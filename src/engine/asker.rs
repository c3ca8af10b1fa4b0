//! What an asker within this process wants of its request beside the answer.
//!
//! Shards want none of it: their requests carry one empty `Option`. An embedder of the C API, a backend that asks its server, and a
//! request that is traced have an [`Asker`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use conch_channel::{Claim, Fate};

use crate::queue::refuse;
use crate::stats::Failure;
use crate::timekeeper::Timekeeper;
use crate::trace::{Activity, Trace};
use crate::{Code, Departures, Error, Ticket};

/// See the module. The type behind it is known to whoever made it.
pub trait Asker: Any + Send + Sync {
    /// Where the request's stations are reported, while the request lives.
    fn trace(&self) -> Option<Trace> {
        None
    }

    /// Whether instances may see other inputs than the request has (those of a host policy).
    fn has_more_inputs(&self) -> bool {
        false
    }

    /// The request is over: its inputs are not referenced any more. Called once, from whatever thread gave the request back, without
    /// any lock held; answers may still follow.
    fn released(&self);
}

impl fmt::Debug for dyn Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asker")
    }
}

/// The last part of a request to be dropped: tells the asker.
#[derive(Debug, Default)]
pub(crate) struct Hold(Option<Arc<dyn Asker>>);

impl Hold {
    pub(crate) fn new(asker: Option<Arc<dyn Asker>>) -> Hold {
        Hold(asker)
    }

    pub(crate) fn asker(&self) -> Option<&Arc<dyn Asker>> {
        self.0.as_ref()
    }

    /// The request was never taken on: it stays with the asker, who learns it otherwise.
    pub(crate) fn defuse(&mut self) {
        self.0 = None;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(asker) = self.0.take() else { return };
        if let Some(trace) = asker.trace() {
            trace.reach_now(Activity::RequestEnd);
        }
        asker.released();
    }
}

/// Cancels a request for an asker without a shard. One that still waits is answered with CANCELLED by the timekeeper, so that nobody is
/// called back on the thread that cancels; one that executes is marked, for the backend to see.
pub fn cancel(ticket: &Ticket, timekeeper: &Timekeeper) {
    let Some(live) = Claim::claim(ticket, Fate::Cancel, None) else {
        return;
    };
    timekeeper.call_at(0, move |_| {
        let mut departures = Departures::default();
        refuse(
            live,
            Failure::Canceled,
            Error::new(Code::Cancelled, ""),
            &mut departures,
        );
        departures.flush();
    });
}
