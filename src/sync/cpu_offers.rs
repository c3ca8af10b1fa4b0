//! Letting a thread on the same CPU go first.
//!
//! A thread that waits for another's answer goes to sleep, with a timer perhaps, and is woken: some
//! 30 us of CPU where both are on one CPU, more than a quick answer needs. If it offers its CPU
//! instead (`sched_yield`), the other runs, the answer is there when the thread goes on, and nobody
//! slept or was woken.
//!
//! That pays for quick answers only, and where nobody else wants the CPU: one that computes for
//! long, or a stranger, would keep it for a scheduler's slice: at most 9 ms in 4,096
//! occasions, as offers that brought no answer in time make the next ones rare. One that kept the
//! CPU away for a millisecond does so alone: everybody else whom the thread serves waited, too.

use std::time::{Duration, Instant};

use crate::TrialBackoff;

/// How long an answer is waited for: what going to sleep and being woken costs.
const PATIENCE: Duration = Duration::from_micros(20);
/// An offer that kept the CPU away for longer than this did not pay even if it brought an answer.
const ABSENCE_MAX: Duration = Duration::from_micros(200);
/// One that did so for so long cost thirty times what an offer gains.
const ABSENCE_DEAR: Duration = Duration::from_millis(1);

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

    /// Notes an occasion that is not used, so that those which are skipped pass.
    pub fn pass(&self) {
        self.backoff.is_due();
    }

    /// Offers the CPU until `look` finds something or patience ends.
    pub fn offer<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        self.offer_timed(look).0
    }

    /// The same, with how long that took.
    pub fn offer_timed<T>(&self, look: impl FnMut() -> Option<T>) -> (Option<T>, Duration) {
        let begin = Instant::now();
        self.offer_for(look, || begin.elapsed())
    }

    /// The same by a clock that tells the time since the first call.
    fn offer_for<T>(
        &self,
        mut look: impl FnMut() -> Option<T>,
        mut elapsed: impl FnMut() -> Duration,
    ) -> (Option<T>, Duration) {
        loop {
            let found = look();
            let elapsed = elapsed();
            if found.is_some() || elapsed > PATIENCE {
                match elapsed >= ABSENCE_DEAR {
                    true => self.backoff.note_dear(),
                    false => {
                        let has_paid = found.is_some() && elapsed <= ABSENCE_MAX;
                        self.backoff.note(has_paid);
                    }
                }
                return (found, elapsed);
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

    /// Offers the CPU to one that answers after `looks` looks, each of which takes `step`.
    fn offer(offers: &CpuOffers, looks: u32, step: Duration) -> Option<u32> {
        let (mut look_count, mut elapsed) = (0, Duration::ZERO);
        let look = || {
            look_count += 1;
            (look_count == looks).then_some(looks)
        };
        let (found, took) = offers.offer_for(look, || {
            elapsed += step;
            elapsed
        });
        assert_eq!(took, elapsed);
        found
    }

    #[test]
    fn what_is_answered_in_time_pays() {
        for (looks, step, answers, pays) in [
            (1, Duration::ZERO, true, true),
            (3, PATIENCE / 2, true, true),
            (4, PATIENCE / 2, false, false),
            (1, ABSENCE_MAX, true, true),
            (1, ABSENCE_MAX + Duration::from_nanos(1), true, false),
        ] {
            let offers = CpuOffers::new();
            for _ in 0..3 {
                assert!(offers.is_due());
                let found = offer(&offers, looks, step);
                assert_eq!(found, answers.then_some(looks), "{looks} {step:?}");
            }
            assert_eq!(offers.is_due(), pays, "{looks} {step:?}");
        }
    }

    #[test]
    fn occasions_that_are_not_used_count() {
        let offers = CpuOffers::new();
        for _ in 0..3 {
            assert!(offers.is_due());
            assert_eq!(offer(&offers, 4, PATIENCE / 2), None);
        }
        (0..4).for_each(|_| offers.pass());
        assert!(offers.is_due());
    }

    #[test]
    fn one_long_absence_makes_offers_rare() {
        for (looks, step, is_rare) in [
            (1, ABSENCE_DEAR - Duration::from_nanos(1), false),
            (1, ABSENCE_DEAR, true),
            (9, ABSENCE_DEAR, true),
        ] {
            let offers = CpuOffers::new();
            assert!(offers.is_due());
            offer(&offers, looks, step);
            let skipped_count = (0..256).filter(|_| !offers.is_due()).count();
            assert_eq!(
                skipped_count,
                if is_rare { 256 } else { 0 },
                "{looks} {step:?}"
            );
        }
    }
}
