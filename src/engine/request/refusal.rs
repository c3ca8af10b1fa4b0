//! Requests that are not executed: refused, too late, or cancelled.

use std::sync::Arc;

use conch_scheduler::SchedulerOutput;
use conch_sync::ClaimReason;

use crate::clock::monotonic_ns;
use crate::model::stats::{FailureReason, RefusalReason};
use crate::request::context::SubmitRefusal;
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::{Code, Error, OwnedRequest, PendingResponses, RequestHandle};

/// Whether some are to be answered without being executed.
pub(crate) fn has_refusals(output: &SchedulerOutput<OwnedRequest>) -> bool {
    !(output.expired.is_empty() && output.cancelled.is_empty() && output.refused.is_empty())
}

/// Answers requests whose timeout has passed.
pub(crate) fn reject(expired: &mut Vec<OwnedRequest>, pending: &mut PendingResponses) {
    if expired.is_empty() {
        return;
    }
    for live in expired.drain(..) {
        let statistics = &live.shared().model.statistics;
        statistics.report_refusal(RefusalReason::Timeout);
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
pub(crate) fn cancel(cancelled: &mut Vec<OwnedRequest>, pending: &mut PendingResponses) {
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
        request_log::log_change(id, RequestState::Pending, RequestState::Released);
    }
    // Its memory and its places are free before the client can send another.
    drop(live);
    pending.push(origin.shared(), Some(Err(error)), true);
}

pub(crate) fn count(handle: &RequestHandle, live: &OwnedRequest, reason: FailureReason) {
    let duration_ns = monotonic_ns().saturating_sub(live.timestamps.request_start_ns);
    let statistics = &handle.shared().model.statistics;
    statistics.report_failure(reason, duration_ns);
}

/// Refuses a request because its model takes no more, and counts it.
pub(crate) fn stopping(refused: &RequestHandle) -> SubmitRefusal {
    const WORDS: &str =
        "Server is stopping, scheduler for model has stopped accepting new inference requests";
    let origin = refused.shared();
    let statistics = &origin.model.statistics;
    statistics.report_refusal(RefusalReason::Stopping);
    let error = match origin.member {
        // The sequence batcher names no request.
        Some(_) => Error::unavailable(WORDS),
        None => Error::unavailable(format!(
            "{}{WORDS}",
            crate::request::messages::RequestIdPrefix(&origin.id)
        )),
    };
    let live = refused.claim(ClaimReason::Cancel, None);
    if let Some(live) = &live {
        count(refused, live, FailureReason::Rejected);
    }
    SubmitRefusal { error, live }
}
