//! Requests that are not executed: refused, too late, or cancelled.

use std::sync::{Arc, Weak};

use conch_scheduler::SchedulerOutput;
use conch_sync::ClaimReason;

use crate::clock::monotonic_ns;
use crate::ensemble::Execution;
use crate::request_log::{self, RequestState};
use crate::stats::FailureReason;
use crate::{Code, Error, OwnedRequest, PendingResponses, RequestHandle};

/// Whether some are to be answered without being executed.
pub(super) fn has_refusals(output: &SchedulerOutput<OwnedRequest>) -> bool {
    !(output.expired.is_empty() && output.cancelled.is_empty() && output.refused.is_empty())
}

/// Answers requests whose timeout has passed.
pub(super) fn reject(expired: &mut Vec<OwnedRequest>, pending: &mut PendingResponses) {
    if expired.is_empty() {
        return;
    }
    for live in expired.drain(..) {
        refuse(
            live,
            FailureReason::Rejected,
            Error::unavailable("Request timeout expired"),
            pending,
        );
    }
    pending.flush();
}

/// Answers requests that were cancelled while their model's batching strategy looked at them, of
/// which whoever cancelled them has been told that they execute.
pub(super) fn cancel(cancelled: &mut Vec<OwnedRequest>, pending: &mut PendingResponses) {
    if cancelled.is_empty() {
        return;
    }
    for live in cancelled.drain(..) {
        let error = Error::new(Code::Cancelled, "");
        refuse(live, FailureReason::Canceled, error, pending);
    }
    pending.flush();
}

/// Answers a request that was not executed, and counts it.
pub(crate) fn refuse(
    live: OwnedRequest,
    reason: FailureReason,
    error: Error,
    pending: &mut PendingResponses,
) {
    let origin = Arc::clone(live.handle());
    if !live.is_null {
        count(&origin, &live, reason);
        let id = &origin.shared().id;
        request_log::note(id, RequestState::Pending, RequestState::Released);
    }
    // Its memory and its places are free before the client can send another.
    drop(live);
    pending.push(origin.shared(), Some(Err(error)), true);
}

/// What became of a request that somebody wants cancelled.
pub(crate) enum CancelOutcome {
    /// It waited: whoever cancelled it has it, and answers it.
    Taken(OwnedRequest),
    /// It is an ensemble's, of which steps may still wait: these are to be cancelled.
    Running(Arc<Execution>),
    /// Whoever has it sees the wish, and answers.
    Marked,
}

/// Marks a request as cancelled, and takes it if nobody else will answer it.
pub(crate) fn mark_cancelled(handle: &RequestHandle) -> CancelOutcome {
    let origin = handle.shared();
    if origin.member.is_some() {
        // The scheduler has its slot, and what waits behind it in its sequence.
        handle.request_cancel();
        if handle.is_queued()
            && let Some(queue) = origin.model.queue.get()
        {
            queue.report_cancel(Arc::clone(handle));
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

fn count(handle: &RequestHandle, live: &OwnedRequest, reason: FailureReason) {
    let duration_ns = monotonic_ns().saturating_sub(live.timestamps.request_start_ns);
    let statistics = &handle.shared().model.statistics;
    statistics.report_failure(reason, duration_ns);
}

/// Refuses a request because its model takes no more, and counts it.
pub(crate) fn stopping(refused: &RequestHandle) -> SubmitRefusal {
    const WORDS: &str =
        "Server is stopping, scheduler for model has stopped accepting new inference requests";
    let origin = refused.shared();
    let error = match origin.member {
        // The sequence batcher names no request.
        Some(_) => Error::unavailable(WORDS),
        None => Error::unavailable(format!(
            "{}{WORDS}",
            crate::admit::RequestIdPrefix(&origin.id)
        )),
    };
    let live = refused.claim(ClaimReason::Cancel, None);
    if let Some(live) = &live {
        count(refused, live, FailureReason::Rejected);
    }
    SubmitRefusal { error, live }
}

/// What the queue did not take. The request is there unless somebody else has claimed it.
pub(crate) struct SubmitRefusal {
    pub(crate) error: Error,
    pub(crate) live: Option<OwnedRequest>,
}
