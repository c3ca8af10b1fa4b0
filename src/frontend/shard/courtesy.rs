//! Letting a core on the same CPU go first.
//!
//! A shard that has submitted requests and has nothing else to do would go to sleep, and the core's reply would wake it: some 30 us of
//! CPU for the executor's way into sleep and out of it, more than a quick model needs. Where shards and cores share CPUs the shard
//! offers its CPU (`sched_yield`) before it arms its door: the core runs, the replies lie in the mailbox when the shard goes on,
//! and nobody slept or was woken.
//!
//! That pays for quick models only. A core that computes for long would keep the CPU for a scheduler's slice, so an offer that did
//! not bring a reply in time doubles the number of turns without one.

use std::cell::Cell;

use conch_engine::clock;

/// How long replies are waited for: what going to sleep and being woken costs.
const PATIENCE_NS: u64 = 20_000;
/// An offer that kept the CPU away for longer than this did not pay even if it brought a reply.
const ABSENCE_NS_MAX: u64 = 200_000;
/// Turns without an offer after failures, at most: under 1/1000 of a slice's length per turn.
const PENALTY_MAX: u32 = 1 << 12;

/// When to offer the CPU. One per shard.
pub(super) struct Courtesy {
    is_enabled: bool,
    is_wished: Cell<bool>,
    skip_count: Cell<u32>,
    penalty: Cell<u32>,
}

impl Courtesy {
    pub(super) fn new(is_enabled: bool) -> Courtesy {
        Courtesy {
            is_enabled,
            is_wished: Cell::new(false),
            skip_count: Cell::new(0),
            penalty: Cell::new(0),
        }
    }

    /// A request is about to be submitted: whether the shard should offer its CPU before it sleeps.
    pub(super) fn wish(&self) -> bool {
        if !self.is_enabled || self.is_wished.get() {
            return self.is_wished.get();
        }
        match self.skip_count.get() {
            0 => self.is_wished.set(true),
            count => self.skip_count.set(count - 1),
        }
        self.is_wished.get()
    }

    /// Offers the CPU if that was wished, until `look` finds something or patience ends.
    pub(super) fn offer<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.is_wished.take() {
            return None;
        }
        let start_ns = clock::monotonic_ns();
        loop {
            if let Some(found) = look() {
                self.book(clock::monotonic_ns().saturating_sub(start_ns) <= ABSENCE_NS_MAX);
                return Some(found);
            }
            if clock::monotonic_ns().saturating_sub(start_ns) > PATIENCE_NS {
                self.book(false);
                return None;
            }
            std::thread::yield_now();
        }
    }

    fn book(&self, has_paid: bool) {
        let penalty = if has_paid {
            0
        } else {
            (self.penalty.get() * 2).clamp(1, PENALTY_MAX)
        };
        self.penalty.set(penalty);
        self.skip_count.set(penalty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_make_offers_rare_and_a_success_brings_them_back() {
        let courtesy = Courtesy::new(true);
        let mut offers = Vec::new();
        for turn in 0..40 {
            if courtesy.wish() {
                offers.push(turn);
                assert_eq!(courtesy.offer(|| None::<()>), None);
            }
        }
        assert_eq!(offers, [0, 2, 5, 10, 19, 36]);
        while !courtesy.wish() {}
        assert!(courtesy.wish(), "wished once for all requests of a turn");
        assert_eq!(courtesy.offer(|| Some(1)), Some(1));
        assert!(courtesy.wish());
        assert_eq!(courtesy.offer(|| Some(2)), Some(2));
        assert_eq!(courtesy.offer(|| Some(3)), None, "not wished since");
    }

    #[test]
    fn off_means_off() {
        let courtesy = Courtesy::new(false);
        assert!(!courtesy.wish());
        assert_eq!(courtesy.offer(|| Some(1)), None);
    }
}
