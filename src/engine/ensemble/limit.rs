//! `max_inflight_requests`: how many requests a step may have in its model at a time, whichever
//! requests of the ensemble they belong to.
//!
//! A step that finds no place waits in line, and holds no thread; whoever gives a place back hands
//! it to the first in line.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The places of one step. The line keeps those alive that wait in it: nobody else does.
#[derive(Debug)]
pub(super) struct StepLimit<W> {
    place_count: u32,
    state: Mutex<StepLimitState<W>>,
}

#[derive(Debug)]
struct StepLimitState<W> {
    taken_count: u32,
    /// Who waits, and its name for what waits there. As long as the requests in flight, which
    /// admission bounds.
    line: VecDeque<(W, u64)>,
}

impl<W> StepLimit<W> {
    pub(super) fn new(place_count: u32) -> StepLimit<W> {
        StepLimit {
            place_count,
            state: Mutex::new(StepLimitState {
                taken_count: 0,
                line: VecDeque::new(),
            }),
        }
    }

    /// Takes a place, or gets in line: then the place comes by [`StepLimit::release`].
    pub(super) fn enter(&self, waiter: impl FnOnce() -> W, name: u64) -> bool {
        let mut state = self.state();
        if state.taken_count < self.place_count {
            state.taken_count += 1;
            return true;
        }
        state.line.push_back((waiter(), name));
        false
    }

    /// Gives a place back: it belongs to whoever is returned.
    pub(super) fn release(&self) -> Option<(W, u64)> {
        let mut state = self.state();
        let next = state.line.pop_front();
        if next.is_none() {
            state.taken_count -= 1;
        }
        next
    }

    /// Places taken, places in all, and how many wait for one.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (u32, u32, usize) {
        let state = self.state();
        (state.taken_count, self.place_count, state.line.len())
    }

    fn state(&self) -> MutexGuard<'_, StepLimitState<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_go_round_in_order() {
        let limit: StepLimit<char> = StepLimit::new(2);
        assert!(limit.enter(|| 'a', 0) && limit.enter(|| 'b', 1));
        assert!(!limit.enter(|| 'c', 2) && !limit.enter(|| 'd', 3));
        assert_eq!(limit.release(), Some(('c', 2)));
        assert!(!limit.enter(|| 'e', 4), "not past those who wait");
        assert_eq!(limit.release(), Some(('d', 3)));
        assert_eq!(limit.release(), Some(('e', 4)));
        assert_eq!([limit.release(), limit.release()], [None; 2]);
        assert_eq!(limit.counts(), (0, 2, 0));
        assert!(limit.enter(|| 'f', 5));
    }
}
