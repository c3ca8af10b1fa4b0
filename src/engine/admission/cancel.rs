//! Cancellation: of a request that waits, executes, or runs as an ensemble.

use std::sync::{Arc, Weak};

use conch_sync::ClaimReason;

use crate::model::stats::FailureReason;
use crate::request::ensemble_run::EnsembleRun;
use crate::request::refusal::{count, refuse};
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::threads::timer_thread::TimerThread;
use crate::{Code, Error, OwnedRequest, PendingResponses, RequestHandle};

/// What became of a request that was cancelled. Whoever cancelled it says how it is answered, if it
/// is theirs to answer.
#[must_use = "a request that waited has no other answer"]
pub struct Cancellation(CancelOutcome);

enum CancelOutcome {
    /// It waited: whoever cancelled it has it, and answers it.
    Taken(OwnedRequest),
    /// It is an ensemble's, of which steps may still wait: these are to be cancelled.
    Running(Arc<dyn EnsembleRun>),
    /// Whoever has it sees the wish, and answers.
    Marked,
}

/// Cancels a request: takes one that still waits, and marks one that executes, for its backend to
/// see. Does not block.
pub fn cancel(handle: &RequestHandle) -> Cancellation {
    let origin = handle.shared();
    if origin.member.is_some() {
        // The scheduler has its slot, and what waits behind it in its sequence.
        handle.request_cancel();
        if handle.is_queued() {
            origin.model.executor.report_cancel(Arc::clone(handle));
        }
        return Cancellation(CancelOutcome::Marked);
    }
    Cancellation(match handle.claim(ClaimReason::Cancel, None) {
        Some(live) => CancelOutcome::Taken(live),
        None => match origin.features.run.get().and_then(Weak::upgrade) {
            Some(run) => CancelOutcome::Running(run),
            None => CancelOutcome::Marked,
        },
    })
}

impl Cancellation {
    /// For the receiver itself: its client left, or its deadline passed. Some: nobody else will
    /// answer the request; it is counted as cancelled and its payload is gone. None: it executes or
    /// is answered; the executor sees the wish as `is_cancelled`.
    pub fn into_error(self) -> Option<Error> {
        let live = match self.0 {
            CancelOutcome::Taken(live) => live,
            CancelOutcome::Running(run) => {
                run.cancel();
                return None;
            }
            CancelOutcome::Marked => return None,
        };
        let handle = Arc::clone(live.handle());
        count(&handle, &live, FailureReason::Canceled);
        let id = &handle.shared().id;
        request_log::log_change(id, RequestState::Pending, RequestState::Released);
        handle.shared().note_response();
        drop(live);
        if let Some(regions) = &handle.shared().features.regions {
            // The queue still holds the handle.
            regions.release();
        }
        Some(Error::new(Code::Cancelled, ""))
    }

    /// Answers through the request's completion, on this thread.
    pub fn deliver(self) {
        match self.0 {
            CancelOutcome::Taken(live) => {
                let mut pending = PendingResponses::default();
                let error = Error::new(Code::Cancelled, "");
                refuse(live, FailureReason::Canceled, error, &mut pending);
                pending.flush();
            }
            CancelOutcome::Running(run) => run.cancel(),
            CancelOutcome::Marked => {}
        }
    }

    /// Answers through the request's completion, on the timer thread: nobody is called back on the
    /// thread that cancels.
    pub fn deliver_on(self, timer_thread: &TimerThread) {
        if !matches!(self.0, CancelOutcome::Marked) {
            timer_thread.call_at(0, move |_| self.deliver());
        }
    }
}
