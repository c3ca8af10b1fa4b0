//! Requests that a stub was given and that are not answered for good.

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
    requests: HashMap<u64, InFlightRequest>,
}

/// A request that is not answered for good.
pub(crate) struct InFlightRequest {
    pub(crate) factory: ResponseFactory,
    /// Of a traced request: what calls on its behalf appear below.
    pub(crate) trace: Option<TraceParent>,
}

impl InFlight {
    /// Takes a request in; its number.
    pub(crate) fn insert(&self, request: InFlightRequest) -> u64 {
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        table.requests.insert(number, request);
        number
    }

    /// Takes a request out, for its last response; none if it has had one.
    pub(crate) fn remove(&self, number: u64) -> Option<InFlightRequest> {
        self.table().requests.remove(&number)
    }

    /// Puts a request back that was taken out for a response that is not the last.
    pub(crate) fn restore(&self, number: u64, request: InFlightRequest) {
        self.table().requests.insert(number, request);
    }

    /// Whether the request's client gave up; also true of a request that has its last response.
    pub(crate) fn is_cancelled(&self, number: u64) -> bool {
        let table = self.table();
        let request = table.requests.get(&number);
        request.is_none_or(|request| request.factory.is_cancelled().unwrap_or(false))
    }

    /// What calls on behalf of a request appear below, if it is traced and still executed.
    pub(crate) fn trace(&self, number: u64) -> Option<TraceParent> {
        self.table().requests.get(&number)?.trace.clone()
    }

    /// Answers what is left with an error.
    pub(crate) fn fail_all(&self, error: &Error) {
        let left: Vec<InFlightRequest> = {
            let mut table = self.table();
            table.requests.drain().map(|(_, request)| request).collect()
        };
        for request in left {
            request.factory.fail(error.clone());
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
