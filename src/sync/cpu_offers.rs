//! Letting a thread on the same CPU go first.
//!
//! A thread that waits for another's answer goes to sleep, with a timer perhaps, and is woken: some
//! 30 us of CPU where both are on one CPU, more than a quick answer needs. If it offers its CPU
//! instead (`sched_yield`), the other runs, the answer is there when the thread goes on, and nobody
//! slept or was woken.
//!
//! That pays for quick answers only, and where nobody else wants the CPU: one that computes for
//! long, or a stranger, would keep it for a scheduler's slice: at most 3 ms once in 4,096
//! occasions, as offers that brought no answer in time make the next ones rare.

use std::time::{Duration, Instant};

use crate::TrialBackoff;

/// How long an answer is waited for: what going to sleep and being woken costs.
const PATIENCE: Duration = Duration::from_micros(20);
/// An offer that kept the CPU away for longer than this did not pay even if it brought an answer.
const ABSENCE_MAX: Duration = Duration::from_micros(200);

/// When to offer the CPU. Of one thread, or of threads that wait for the same other.
#[derive(Debug)]
pub struct CpuOffers {
    backoff: TrialBackoff,
}

impl CpuOffers {
    pub const fn new() -> CpuOffers {
        CpuOffers {
            backoff: TrialBackoff::skipping(0),
        }
    }

    /// Notes an occasion. Whether to offer the CPU.
    pub fn is_due(&self) -> bool {
        self.backoff.is_due()
    }

    /// Offers the CPU until `look` finds something or patience ends.
    pub fn offer<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let begin = Instant::now();
        loop {
            let found = look();
            let elapsed = begin.elapsed();
            if found.is_some() {
                self.backoff.note(elapsed <= ABSENCE_MAX);
                return found;
            }
            if elapsed > PATIENCE {
                self.backoff.note(false);
                return None;
            }
            std::thread::yield_now();
        }
    }
}

impl Default for CpuOffers {
    fn default() -> CpuOffers {
        CpuOffers::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// On which of the next occasions the CPU was offered, all with the same outcome.
    fn offered(offers: &CpuOffers, count: u32, finds: bool) -> Vec<u32> {
        let is_offered = |_: &u32| {
            let is_due = offers.is_due();
            if is_due {
                assert_eq!(offers.offer(|| finds.then_some(())).is_some(), finds);
            }
            is_due
        };
        (0..count).filter(is_offered).collect()
    }

    #[test]
    fn failures_make_offers_rare_and_successes_bring_them_back() {
        let offers = CpuOffers::new();
        assert_eq!(offered(&offers, 3, true), [0, 1, 2]);
        assert_eq!(offered(&offers, 100, false), [0, 5, 22, 87]);
        let until_often = offered(&offers, 700, true).len();
        assert_eq!(
            until_often,
            700 - 244 - (128 + 64 + 32 + 16 + 8 + 4 + 2 + 1)
        );
        assert_eq!(offered(&offers, 3, true), [0, 1, 2]);
    }

    #[test]
    fn the_other_thread_runs_meanwhile() {
        let offers = CpuOffers::new();
        let mut looks = 0;
        let found = offers.offer(|| {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, Some(3));
    }
}
