//! Requests that a stub was given and that are not answered for good.
//!
//! ```text
//! insert: Executing --answered in the reply, failed or executed again--> (gone)
//!             |
//!             | leave: its sender answers it
//!             v
//!         AtSender --last response, dropped by the model, or the process is gone--> (gone)
//! ```
//!
//! As long as a request is executed, the executing thread answers it; [`InFlight::fail_all`] only
//! leaves it the error, for the case that it leaves the request to a sender that is gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use conch_backend_sdk as sdk;
use sdk::{Error, ResponseFactory, TraceParent};

/// Requests by number. Numbers are never used twice.
#[derive(Default)]
pub(crate) struct InFlight {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    entries: HashMap<u64, Entry>,
}

struct Entry {
    /// None while a response is sent that is not the last.
    request: Option<InFlightRequest>,
    is_executing: bool,
    /// What the request ends with when it comes back from a sender, or goes to one.
    failure: Option<Error>,
}

/// A request that is not answered for good.
pub(crate) struct InFlightRequest {
    pub(crate) factory: ResponseFactory,
    /// Of a traced request: what calls on its behalf appear below.
    pub(crate) trace: Option<TraceParent>,
}

impl InFlight {
    /// Takes a request in that is about to be executed; its number.
    pub(crate) fn insert(&self, request: InFlightRequest) -> u64 {
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        table.entries.insert(
            number,
            Entry {
                request: Some(request),
                is_executing: true,
                failure: None,
            },
        );
        number
    }

    /// Takes a request out, for its last response; none if it has had one, or a response of it is
    /// being sent.
    pub(crate) fn remove(&self, number: u64) -> Option<InFlightRequest> {
        let mut table = self.table();
        let request = table.entries.get_mut(&number)?.request.take()?;
        table.entries.remove(&number);
        Some(request)
    }

    /// As [`InFlight::remove`], for an error. If a response is being sent, the error follows it.
    pub(crate) fn remove_to_fail(&self, number: u64, error: &Error) -> Option<InFlightRequest> {
        let mut table = self.table();
        let entry = table.entries.get_mut(&number)?;
        if entry.request.is_none() {
            entry.failure = Some(error.clone());
            return None;
        }
        table.entries.remove(&number)?.request
    }

    /// Lends a request out for a response that is not the last, until [`InFlight::restore`].
    pub(crate) fn lend(&self, number: u64) -> Option<InFlightRequest> {
        self.table().entries.get_mut(&number)?.request.take()
    }

    /// Takes a request back that was lent.
    pub(crate) fn restore(&self, number: u64, request: InFlightRequest) {
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&number) else {
            return;
        };
        match entry.failure.take_if(|_| !entry.is_executing) {
            None => entry.request = Some(request),
            Some(error) => {
                table.entries.remove(&number);
                drop(table);
                request.factory.fail(error);
            }
        }
    }

    /// The request was executed, and its sender answers it.
    pub(crate) fn leave(&self, number: u64) {
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&number) else {
            return;
        };
        entry.is_executing = false;
        if entry.request.is_none() {
            return;
        }
        // The process has gone since it replied.
        if let Some(error) = entry.failure.take() {
            let left = table.entries.remove(&number);
            drop(table);
            if let Some(request) = left.and_then(|entry| entry.request) {
                request.factory.fail(error);
            }
        }
    }

    /// The request is executed once more, by another process: what its last one left is void.
    pub(crate) fn begin_again(&self, number: u64) {
        if let Some(entry) = self.table().entries.get_mut(&number) {
            entry.failure = None;
        }
    }

    /// Whether the request's client gave up; also true of a request that has its last response.
    pub(crate) fn is_cancelled(&self, number: u64) -> bool {
        let table = self.table();
        let entry = table.entries.get(&number);
        let request = entry.and_then(|entry| entry.request.as_ref());
        request.is_none_or(|request| request.factory.is_cancelled().unwrap_or(false))
    }

    /// What calls on behalf of a request appear below, if it is traced and still executed.
    pub(crate) fn trace(&self, number: u64) -> Option<TraceParent> {
        let table = self.table();
        table.entries.get(&number)?.request.as_ref()?.trace.clone()
    }

    /// Answers what senders have with an error, which is left for what is still executed.
    pub(crate) fn fail_all(&self, error: &Error) {
        let mut left = Vec::new();
        self.table().entries.retain(|_, entry| {
            if !entry.is_executing
                && let Some(request) = entry.request.take()
            {
                left.push(request);
                return false;
            }
            entry.failure = Some(error.clone());
            true
        });
        for request in left {
            request.factory.fail(error.clone());
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
