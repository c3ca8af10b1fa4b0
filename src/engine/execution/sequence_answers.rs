//! Answers to requests that the sequence batcher refuses, and the return of requests that it gave
//! out.

use std::sync::Arc;

use conch_scheduler::{Dismissal, SchedulerOutput, SequenceBatcher};
use conch_sync::Drained;

use crate::model::stats::{FailureReason, RefusalReason};
use crate::request::refusal::refuse;
use crate::{Code, Error, OwnedRequest, PendingResponses, RequestHandle};

/// What a core executed has come back.
pub(crate) fn returned(
    sequence: &mut SequenceBatcher<RequestHandle>,
    handles: Drained<RequestHandle>,
    now_ns: u64,
    output: &mut SchedulerOutput<OwnedRequest>,
) {
    for handle in handles {
        if handle.is_queued() {
            sequence.reschedule(handle, now_ns, output);
        } else {
            sequence.release(&handle, now_ns);
        }
    }
}

/// Answers requests of sequences that are not executed.
pub(crate) fn turn_away(
    refused: &mut Vec<(OwnedRequest, Dismissal)>,
    pending: &mut PendingResponses,
) {
    if refused.is_empty() {
        return;
    }
    for (live, why) in refused.drain(..) {
        let origin = Arc::clone(live.handle());
        let (id, model) = (&live.correlation_id, &origin.shared().model.name);
        let statistics = &origin.shared().model.statistics;
        match why {
            Dismissal::BacklogFull => statistics.report_refusal(RefusalReason::QueueFull),
            Dismissal::TimedOut => statistics.report_refusal(RefusalReason::Timeout),
            Dismissal::NotStarted | Dismissal::Cancelled => {}
        }
        // What upstream refuses before it is queued it does not count.
        let (error, reason) = match why {
            Dismissal::NotStarted => (
                Error::invalid(format!(
                    "inference request for sequence {id} to model '{model}' must specify the START \
                     flag on the first request of the sequence"
                )),
                None,
            ),
            Dismissal::BacklogFull => (crate::request::messages::full(&origin.shared().id), None),
            Dismissal::TimedOut => (
                Error::unavailable("timeout of the corresponding sequence has been expired"),
                Some(FailureReason::Rejected),
            ),
            Dismissal::Cancelled => (
                Error::new(Code::Cancelled, ""),
                Some(FailureReason::Canceled),
            ),
        };
        if let Some(reason) = reason {
            refuse(live, reason, error, pending);
        } else {
            drop(live);
            pending.push(origin.shared(), Some(Err(error)), true);
        }
    }
    pending.flush();
}
