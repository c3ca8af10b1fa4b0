//! Requests in flight on a shard, and the deliveries that came for them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use conch_engine::{Delivery, Error, Response};

use super::slab::Slab;

/// One request between admission and its final delivery.
pub(crate) struct InFlightEntry {
    waker: Option<Waker>,
    outcome: Option<Result<Response, Error>>,
    response_count: u32,
    is_final: bool,
    is_abandoned: bool,
    /// Where deliveries go instead of staying here.
    responses: Option<Rc<ResponseQueue>>,
}

/// All of them; the slot of a delivery is the key.
pub(crate) struct InFlight {
    table: Slab<InFlightEntry>,
    count_max: usize,
}

impl InFlight {
    pub(crate) fn new(count_max: usize) -> InFlight {
        InFlight {
            table: Slab::new(),
            count_max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// A slot for a new request; none at the bound.
    pub(crate) fn reserve(&mut self, responses: Option<Rc<ResponseQueue>>) -> Option<u64> {
        if self.table.len() >= self.count_max {
            return None;
        }
        Some(self.table.insert(InFlightEntry {
            waker: None,
            outcome: None,
            response_count: 0,
            is_final: false,
            is_abandoned: false,
            responses,
        }))
    }

    pub(crate) fn release(&mut self, slot: u64) {
        self.table.remove(slot);
    }

    /// Takes a delivery in. Returns the waker of the task that waits for it, to be woken when no
    /// borrow is held.
    pub(crate) fn deliver(&mut self, delivery: Delivery) -> Option<Waker> {
        let (slot, is_final) = (delivery.slot(), delivery.is_final());
        let entry = self.table.get_mut(slot)?;
        if let Some(responses) = entry.responses.clone() {
            if is_final {
                self.table.remove(slot);
            }
            return responses.push(delivery);
        }
        if entry.is_abandoned {
            // Nobody will read it: its buffers are free now, not at the end.
            if is_final {
                self.table.remove(slot);
            }
            return None;
        }
        if let Some(outcome) = delivery.into_outcome() {
            entry.response_count = entry.response_count.saturating_add(1);
            entry.outcome = Some(match entry.response_count {
                1 => outcome,
                count => Err(wrong_count(count)),
            });
        }
        if !is_final {
            return None;
        }
        entry.is_final = true;
        entry.waker.take()
    }

    pub(super) fn take(
        &mut self,
        slot: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response, Error>> {
        let Some(entry) = self.table.get_mut(slot) else {
            return Poll::Ready(Err(Error::internal("the request is not in flight")));
        };
        if !entry.is_final {
            match &mut entry.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let entry = self.table.remove(slot).expect("it was found above");
        Poll::Ready(entry.outcome.unwrap_or_else(|| Err(wrong_count(0))))
    }

    pub(super) fn abandon(&mut self, slot: u64) {
        if let Some(entry) = self.table.get_mut(slot) {
            if entry.is_final {
                self.table.remove(slot);
            } else {
                entry.is_abandoned = true;
                entry.waker = None;
                entry.outcome = None;
                entry.responses = None;
            }
        }
    }
}

fn wrong_count(count: u32) -> Error {
    Error::internal(format!("expected a single response, got {count}"))
}

/// What came for the requests of one stream, in the order in which it came.
#[derive(Default)]
pub struct ResponseQueue {
    deliveries: RefCell<VecDeque<Delivery>>,
    waker: RefCell<Option<Waker>>,
}

impl ResponseQueue {
    fn push(&self, delivery: Delivery) -> Option<Waker> {
        self.deliveries.borrow_mut().push_back(delivery);
        self.waker.borrow_mut().take()
    }

    /// The next delivery; `context` is woken when there is one.
    pub fn take(&self, context: &mut Context<'_>) -> Option<Delivery> {
        let delivery = self.deliveries.borrow_mut().pop_front();
        if delivery.is_none() {
            let mut waker = self.waker.borrow_mut();
            match &mut *waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
        delivery
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(slot: u64, outcome: Option<Result<Response, Error>>, is_final: bool) -> Delivery {
        Delivery::new(slot, outcome, is_final)
    }

    #[test]
    fn what_comes_for_an_abandoned_request_is_not_kept() {
        let mut in_flight = InFlight::new(2);
        let abandoned = in_flight.reserve(None).unwrap();
        let awaited = in_flight.reserve(None).unwrap();
        assert!(in_flight.reserve(None).is_none(), "the bound");
        in_flight.abandon(abandoned);
        for slot in [abandoned, awaited] {
            let outcome = Some(Err(Error::invalid("late")));
            assert!(in_flight.deliver(delivery(slot, outcome, false)).is_none());
        }
        let mut keeps = |slot| in_flight.table.get_mut(slot).unwrap().outcome.is_some();
        assert!(!keeps(abandoned) && keeps(awaited));
        for slot in [abandoned, awaited] {
            in_flight.deliver(delivery(slot, None, true));
        }
        assert_eq!(in_flight.len(), 1, "the abandoned one is over");
        let mut context = Context::from_waker(Waker::noop());
        assert!(in_flight.take(awaited, &mut context).is_ready());
        assert_eq!(in_flight.len(), 0);
    }
}
