//! Wake-ups of cores that a shard puts off.
//!
//! When there is room again under a limit, a shard submits the requests that waited for it, one
//! after the other. A core that was woken for the first would take the CPU from the shard at once
//! and execute a batch of one, and so on: a hand-over there and back for each request. So while
//! more wait, the queue wakes nobody for a request that waited. The shard does so once for all that
//! it has submitted, when its turns bring no more, after [`HOLD_NS_MAX`] at the latest, and before
//! it looks for replies.

use std::cell::{Cell, RefCell};

use conch_engine::{InlineTurn, clock};

use super::runtime::MAY_WAKE_ITSELF;

/// As long as a few turns: some tens of requests. It comes once per batch of an idle core.
const HOLD_NS_MAX: u64 = 300_000;

/// What a shard owes queues, of which a drop wakes a core. One per shard.
pub(super) struct OwedWakes<T = InlineTurn> {
    turns: RefCell<Vec<T>>,
    /// When the first of them was made.
    since_ns: Cell<u64>,
    /// A request was submitted since the last look.
    is_growing: Cell<bool>,
    /// A request that waited was let in, and is submitted next.
    is_expected: Cell<bool>,
}

impl<T> OwedWakes<T> {
    pub(super) fn new() -> OwedWakes<T> {
        OwedWakes {
            turns: RefCell::default(),
            since_ns: Cell::new(0),
            is_growing: Cell::new(false),
            is_expected: Cell::new(false),
        }
    }

    /// A request that waited is let in.
    pub(super) fn note_let_in(&self) {
        self.is_expected.set(true);
    }

    /// Whether it is such a request that is submitted. Those of others do not wait for more.
    pub(super) fn take_let_in(&self) -> bool {
        self.is_expected.take()
    }

    /// Notes a request that was submitted while others wait, and what its queue got for the offer,
    /// if it had no request before.
    pub(super) fn owe(&self, turn: Option<T>) {
        self.is_growing.set(true);
        let Some(turn) = turn else {
            return;
        };
        let mut turns = self.turns.borrow_mut();
        if turns.is_empty() {
            self.since_ns.set(clock::monotonic_ns());
        }
        turns.push(turn);
    }

    /// Wakes a core of each queue, unless more requests are likely to come. False then: the shard
    /// looks again after another turn.
    pub(super) fn settle(&self) -> bool {
        let is_growing = self.is_growing.take();
        let mut turns = self.turns.borrow_mut();
        if turns.is_empty() {
            return true;
        }
        let held_ns = || clock::monotonic_ns().saturating_sub(self.since_ns.get());
        if MAY_WAKE_ITSELF && is_growing && held_ns() < HOLD_NS_MAX {
            return false;
        }
        turns.clear();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_wake_is_put_off_while_requests_come_and_not_for_long() {
        let owed = OwedWakes::new();
        assert!(!owed.take_let_in());
        owed.note_let_in();
        assert!(owed.take_let_in() && !owed.take_let_in());
        let queue = Rc::new(());
        let owed_count = || Rc::strong_count(&queue) - 1;
        assert!(owed.settle(), "nothing is owed");
        owed.owe(None);
        assert!(owed.settle(), "whoever pushed first wakes the core");
        // Requests come with every turn.
        let begin_ns = clock::monotonic_ns();
        owed.owe(Some(Rc::clone(&queue)));
        owed.owe(Some(Rc::clone(&queue)));
        while !owed.settle() {
            assert_eq!(owed_count(), 2);
            owed.owe(None);
        }
        let is_over = clock::monotonic_ns() >= begin_ns + HOLD_NS_MAX;
        assert!(is_over || !MAY_WAKE_ITSELF);
        assert_eq!(owed_count(), 0);
        // A turn that brings none ends it.
        owed.owe(Some(Rc::clone(&queue)));
        let _ = owed.settle();
        assert!(owed.settle());
        assert_eq!(owed_count(), 0);
        owed.owe(Some(Rc::clone(&queue)));
        drop(owed);
        assert_eq!(owed_count(), 0, "the shard ends");
    }
}
