//! What is to happen in a simulated life: by time, then in order of planning.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(super) struct Agenda<E> {
    events: BinaryHeap<Reverse<(u64, u64, E)>>,
    planned_count: u64,
}

impl<E: Ord> Agenda<E> {
    pub(super) fn new() -> Agenda<E> {
        Agenda {
            events: BinaryHeap::new(),
            planned_count: 0,
        }
    }

    pub(super) fn plan(&mut self, at_ns: u64, event: E) {
        self.planned_count += 1;
        self.events
            .push(Reverse((at_ns, self.planned_count, event)));
    }

    /// When the next event comes, if there is one.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((at_ns, _, _))| *at_ns)
    }

    /// The next event, and when it comes, unless that is after `end_ns`.
    pub(super) fn take_until(&mut self, end_ns: u64) -> Option<(u64, E)> {
        self.next_ns().filter(|at_ns| *at_ns <= end_ns)?;
        let Reverse((at_ns, _, event)) = self.events.pop()?;
        Some((at_ns, event))
    }
}
