//! Cancellation: of a request that waits, executes, or runs as an ensemble.

use std::sync::{Arc, Weak};

use conch_sync::ClaimReason;

use crate::execution::refusal::{count, refuse};
use crate::execution::timer_thread::TimerThread;
use crate::model::stats::FailureReason;
use crate::request::ensemble_run::EnsembleRun;
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::{Code, Error, OwnedRequest, PendingResponses, RequestHandle};

/// What became of a request that somebody wants cancelled.
pub(crate) enum CancelOutcome {
    /// It waited: whoever cancelled it has it, and answers it.
    Taken(OwnedRequest),
    /// It is an ensemble's, of which steps may still wait: these are to be cancelled.
    Running(Arc<dyn EnsembleRun>),
    /// Whoever has it sees the wish, and answers.
    Marked,
}

/// Marks a request as cancelled, and takes it if nobody else will answer it.
pub(crate) fn mark_cancelled(handle: &RequestHandle) -> CancelOutcome {
    let origin = handle.shared();
    if origin.member.is_some() {
        // The scheduler has its slot, and what waits behind it in its sequence.
        handle.request_cancel();
        if handle.is_queued() {
            origin.model.executor.report_cancel(Arc::clone(handle));
        }
        return CancelOutcome::Marked;
    }
    match handle.claim(ClaimReason::Cancel, None) {
        Some(live) => CancelOutcome::Taken(live),
        None => match origin.run.get().and_then(Weak::upgrade) {
            Some(run) => CancelOutcome::Running(run),
            None => CancelOutcome::Marked,
        },
    }
}

/// Takes a queued request back for its owner: the client left or its deadline passed. Some: nobody
/// else will answer it; it is counted as cancelled and its payload is gone. None: it is executing
/// or answered; the executor sees the wish as `is_cancelled`.
pub fn withdraw(handle: &RequestHandle) -> Option<Error> {
    let live = match mark_cancelled(handle) {
        CancelOutcome::Taken(live) => live,
        CancelOutcome::Running(run) => {
            run.cancel();
            return None;
        }
        CancelOutcome::Marked => return None,
    };
    count(handle, &live, FailureReason::Canceled);
    let id = &handle.shared().id;
    request_log::note(id, RequestState::Pending, RequestState::Released);
    drop(live);
    if let Some(usage) = &handle.shared().usage {
        // The queue still holds the handle.
        usage.release();
    }
    Some(Error::new(Code::Cancelled, ""))
}

/// Cancels a request for an observer without a shard. One that still waits is answered with
/// CANCELLED by the timer thread, so that nobody is called back on the thread that cancels; one
/// that executes is marked, for the backend to see.
pub fn cancel(handle: &RequestHandle, timer_thread: &TimerThread) {
    let live = match mark_cancelled(handle) {
        CancelOutcome::Taken(live) => live,
        CancelOutcome::Running(run) => {
            timer_thread.call_at(0, move |_| run.cancel());
            return;
        }
        CancelOutcome::Marked => return,
    };
    timer_thread.call_at(0, move |_| {
        let mut pending = PendingResponses::default();
        refuse(
            live,
            FailureReason::Canceled,
            Error::new(Code::Cancelled, ""),
            &mut pending,
        );
        pending.flush();
    });
}
