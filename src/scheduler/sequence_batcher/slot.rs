//! The state of one slot.

use std::mem;

use super::member::SequenceNumber;
use crate::entry::Entry;

/// A slot of an instance: which sequence holds it, and where the request is that was last taken out
/// of that sequence's queue.
///
/// ```text
///          occupy                     vacate
///   free ─────────► held ───────────────────────────────► free
///     ▲              │ vacate, while a request is out
///     │ come_back    ▼           occupy
///     └────────── draining ──────────────► held; its queue waits for come_back
///
///   the request:
///
///          set_candidate           give_out              come_back
///   queued ────────────► candidate ──────────► given out ───────────► queued
///     │ ▲                   │ withdraw             ▲
///     │ └───────────────────┘       give_out       │
///     └────────────────────────────────────────────┘
/// ```
///
/// Only the oldest strategy has candidates. Each method asserts that its transition is one of
/// these: a slot has one sequence and one request at a time.
#[derive(Clone, Debug)]
pub(super) struct SequenceSlot<T> {
    holder: Option<SequenceNumber>,
    request: SlotRequest<T>,
}

#[derive(Clone, Debug)]
enum SlotRequest<T> {
    /// Whatever the sequence has waits in its queue.
    Queued,
    /// It waits in the batcher of its instance.
    Candidate(T),
    /// It is executed, as far as the scheduler knows.
    GivenOut,
}

impl<T> Default for SequenceSlot<T> {
    fn default() -> SequenceSlot<T> {
        SequenceSlot {
            holder: None,
            request: SlotRequest::Queued,
        }
    }
}

impl<T: Entry> SequenceSlot<T> {
    /// The sequence that holds it.
    pub(super) fn holder(&self) -> Option<SequenceNumber> {
        self.holder
    }

    /// Whether no sequence holds it and no request is out.
    pub(super) fn is_free(&self) -> bool {
        self.holder.is_none() && !self.is_out()
    }

    /// Whether a request is a candidate or given out.
    pub(super) fn is_out(&self) -> bool {
        !matches!(self.request, SlotRequest::Queued)
    }

    /// Whether what waits behind it waits for the request that was given out, which may be run
    /// again.
    pub(super) fn is_held_back(&self, is_iterative: bool) -> bool {
        self.is_out() && is_iterative
    }

    /// A sequence gets the slot.
    pub(super) fn occupy(&mut self, sequence: SequenceNumber) {
        let before = self.holder.replace(sequence);
        assert!(before.is_none(), "a slot is given to two sequences");
    }

    /// Its sequence has ended.
    pub(super) fn vacate(&mut self) -> SequenceNumber {
        self.holder.take().expect("a slot without a sequence ends")
    }

    /// The next request of its sequence goes into the batcher of the instance.
    pub(super) fn set_candidate(&mut self, entry: T) {
        let before = mem::replace(&mut self.request, SlotRequest::Candidate(entry));
        let is_queued = matches!(before, SlotRequest::Queued);
        assert!(is_queued, "two requests of one slot are out");
    }

    /// Takes the candidate back if it is `entry`.
    pub(super) fn withdraw(&mut self, entry: &T) -> bool {
        let is_candidate =
            matches!(&self.request, SlotRequest::Candidate(candidate) if candidate.is_same(entry));
        if is_candidate {
            self.request = SlotRequest::Queued;
        }
        is_candidate
    }

    /// The candidate, or the first request of the queue, is in a batch. Returns the candidate.
    pub(super) fn give_out(&mut self) -> Option<T> {
        match mem::replace(&mut self.request, SlotRequest::GivenOut) {
            SlotRequest::Queued => None,
            SlotRequest::Candidate(entry) => Some(entry),
            SlotRequest::GivenOut => panic!("two requests of one slot are executed"),
        }
    }

    /// The request that was given out has come back.
    pub(super) fn come_back(&mut self) {
        let before = mem::replace(&mut self.request, SlotRequest::Queued);
        let is_given_out = matches!(before, SlotRequest::GivenOut);
        assert!(is_given_out, "a request comes back that is not out");
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;
    use crate::entry::SchedulingParams;
    use crate::fake::Fake;

    type Slot = SequenceSlot<Rc<Fake>>;

    fn entry() -> Rc<Fake> {
        Fake::new(0, SchedulingParams::default(), None)
    }

    #[test]
    fn a_slot_is_held_while_the_request_of_its_last_sequence_is_out() {
        let mut slot = Slot::default();
        assert!(slot.is_free());
        slot.occupy(1);
        assert!(slot.give_out().is_none() && slot.is_out());
        assert_eq!(slot.vacate(), 1);
        assert!(!slot.is_free(), "it drains");
        slot.occupy(2);
        assert!(slot.is_out());
        slot.come_back();
        let candidate = entry();
        slot.set_candidate(Rc::clone(&candidate));
        assert!(!slot.withdraw(&entry()), "another request");
        assert!(slot.withdraw(&candidate) && !slot.withdraw(&candidate));
        slot.set_candidate(candidate);
        assert!(slot.give_out().is_some());
        assert!(slot.is_held_back(true) && !slot.is_held_back(false));
        slot.come_back();
        slot.vacate();
        assert!(slot.is_free());
    }

    #[test]
    fn what_breaks_a_rule_panics() {
        let breaches: [fn(&mut Slot); 7] = [
            |slot| {
                slot.occupy(1);
                slot.occupy(2);
            },
            |slot| {
                slot.vacate();
            },
            |slot| slot.come_back(),
            |slot| {
                slot.set_candidate(entry());
                slot.come_back();
            },
            |slot| {
                slot.set_candidate(entry());
                slot.set_candidate(entry());
            },
            |slot| {
                slot.give_out();
                slot.set_candidate(entry());
            },
            |slot| {
                slot.give_out();
                slot.give_out();
            },
        ];
        for (number, breach) in breaches.into_iter().enumerate() {
            let mut slot = Slot::default();
            let outcome = catch_unwind(AssertUnwindSafe(|| breach(&mut slot)));
            assert!(outcome.is_err(), "breach {number}");
        }
    }
}
