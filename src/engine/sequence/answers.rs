//! What becomes of requests that a scheduler of sequences does not give out, or has given out before.

use std::sync::Arc;

use conch_sync::Drained;

use crate::queue::refuse;
use crate::scheduler::{Dismissal, Harvest, Sequence};
use crate::stats::Failure;
use crate::{Code, Departures, Error, Live, Ticket};

/// What a core executed has come back.
pub(crate) fn returned(
    sequence: &mut Sequence<Ticket>,
    tickets: Drained<Ticket>,
    now_ns: u64,
    harvest: &mut Harvest<Live>,
) {
    for ticket in tickets {
        if ticket.is_queued() {
            sequence.reschedule(ticket, now_ns, harvest);
        } else {
            sequence.release(&ticket, now_ns);
        }
    }
}

/// Answers requests of sequences that are not executed.
pub(crate) fn turn_away(refused: &mut Vec<(Live, Dismissal)>, departures: &mut Departures) {
    if refused.is_empty() {
        return;
    }
    for (live, why) in refused.drain(..) {
        let origin = Arc::clone(live.ticket());
        let (id, model) = (&live.correlation_id, &origin.shared().model.name);
        // What upstream refuses before it is queued it does not count.
        let (error, reason) = match why {
            Dismissal::NotStarted => (
                Error::invalid(format!(
                    "inference request for sequence {id} to model '{model}' must specify the START flag on the first request of the sequence"
                )),
                None,
            ),
            Dismissal::BacklogFull => (crate::admit::full(&origin.shared().id), None),
            Dismissal::TimedOut => (
                Error::unavailable("timeout of the corresponding sequence has been expired"),
                Some(Failure::Rejected),
            ),
            Dismissal::Cancelled => (Error::new(Code::Cancelled, ""), Some(Failure::Canceled)),
        };
        if let Some(reason) = reason {
            refuse(live, reason, error, departures);
        } else {
            drop(live);
            departures.push(origin.shared(), Some(Err(error)), true);
        }
    }
    departures.flush();
}
