//! Letting a core on the same CPU go first.
//!
//! A shard that has submitted requests and has nothing else to do would go to sleep, and the core's
//! reply would wake it: some 30 us of CPU for the executor's way into sleep and out of it, more
//! than a quick model needs. Where shards and cores share CPUs the shard offers its CPU
//! (`sched_yield`) before it arms its door: the core runs, the replies lie in the mailbox when the
//! shard goes on, and nobody slept or was woken.
//!
//! That pays for quick models only, and where nobody else wants the CPU: a core that computes for
//! long, or a stranger, would keep it for a scheduler's slice. So an offer that brought no reply in
//! time makes the next ones rarer by four, one that did makes them more frequent by two: they go on
//! where at least two of three bring something.

use std::cell::Cell;

use conch_engine::clock;

/// How long replies are waited for: what going to sleep and being woken costs.
const PATIENCE_NS: u64 = 20_000;
/// An offer that kept the CPU away for longer than this did not pay even if it brought a reply.
const ABSENCE_NS_MAX: u64 = 200_000;
/// Requests without an offer after failures, at most: a slice of 3 ms lost per 4,096 requests is
/// under 1 us for each.
const PENALTY_MAX: u32 = 1 << 12;

/// When to offer the CPU. One per shard.
pub(super) struct YieldPolicy {
    is_enabled: bool,
    is_wished: Cell<bool>,
    skip_count: Cell<u32>,
    penalty: Cell<u32>,
}

impl YieldPolicy {
    pub(super) fn new(is_enabled: bool) -> YieldPolicy {
        YieldPolicy {
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

    /// There is nothing to wait for.
    pub(super) fn forget(&self) {
        self.is_wished.set(false);
    }

    /// Offers the CPU if that was wished, until `look` finds something or patience ends.
    pub(super) fn offer<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.is_wished.take() {
            return None;
        }
        let start_ns = clock::monotonic_ns();
        loop {
            if let Some(found) = look() {
                self.adjust_penalty(
                    clock::monotonic_ns().saturating_sub(start_ns) <= ABSENCE_NS_MAX,
                );
                return Some(found);
            }
            if clock::monotonic_ns().saturating_sub(start_ns) > PATIENCE_NS {
                self.adjust_penalty(false);
                return None;
            }
            std::thread::yield_now();
        }
    }

    fn adjust_penalty(&self, has_paid: bool) {
        let penalty = if has_paid {
            self.penalty.get() / 2
        } else {
            (self.penalty.get() * 4).clamp(4, PENALTY_MAX)
        };
        self.penalty.set(penalty);
        self.skip_count.set(penalty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In which of the next turns, of one request each, the CPU was offered, all with the same
    /// outcome.
    fn offers(yield_policy: &YieldPolicy, turn_count: u32, finds: bool) -> Vec<u32> {
        (0..turn_count)
            .filter(|_| {
                let is_wished = yield_policy.wish();
                yield_policy.offer(|| finds.then_some(())).is_some() || (is_wished && !finds)
            })
            .collect()
    }

    #[test]
    fn failures_make_offers_rare_and_successes_bring_them_back() {
        let yield_policy = YieldPolicy::new(true);
        assert_eq!(offers(&yield_policy, 3, true), [0, 1, 2]);
        assert_eq!(offers(&yield_policy, 100, false), [0, 5, 22, 87]);
        let until_often = offers(&yield_policy, 700, true);
        assert_eq!(
            until_often.len(),
            700 - 244 - (128 + 64 + 32 + 16 + 8 + 4 + 2 + 1)
        );
        assert_eq!(offers(&yield_policy, 3, true), [0, 1, 2]);
        assert_eq!(yield_policy.offer(|| Some(3)), None, "not wished since");
    }

    #[test]
    fn off_means_off() {
        let yield_policy = YieldPolicy::new(false);
        assert!(!yield_policy.wish());
        assert_eq!(yield_policy.offer(|| Some(1)), None);
    }
}
