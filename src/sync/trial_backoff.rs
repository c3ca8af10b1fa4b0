//! How often something is tried that pays only at times.

use std::sync::atomic::{AtomicU32, Ordering};

/// Occasions that are skipped after failures, at most.
const SKIPS_MAX: u32 = 1 << 12;

/// Occasions that are skipped after a trial that cost dearly, at least.
const DEAR_SKIPS_MIN: u32 = 1 << 8;

/// Trials one after the other of which one has to pay: the first after a pause finds caches cold
/// and threads asleep, and says little of those that follow.
const RUN: u32 = 3;

/// Whether to try on the next occasion, as far as trials paid before. A run of three in a row that
/// did not pay has four times as many occasions skipped as the one before (4 at first, 4,096 at
/// most), each trial that did one half as many: trials go on where at least two of three runs have
/// one that pays.
///
/// Several threads may share one. Relaxed: a count that is lost among them does no harm.
#[derive(Debug)]
pub struct TrialBackoff {
    skips_left: AtomicU32,
    penalty: AtomicU32,
    /// Trials since the last pause, or since one paid.
    failed_count: AtomicU32,
}

impl TrialBackoff {
    /// Skips the first occasions.
    pub const fn skipping(first_count: u32) -> TrialBackoff {
        TrialBackoff {
            skips_left: AtomicU32::new(first_count),
            penalty: AtomicU32::new(0),
            failed_count: AtomicU32::new(0),
        }
    }

    /// Notes an occasion. Whether to try.
    pub fn is_due(&self) -> bool {
        let left = self.skips_left.load(Ordering::Relaxed);
        if left > 0 {
            self.skips_left.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// Notes a trial that cost far more than others gain: one in a hundred would be too many. Four
    /// times as many occasions are skipped as before, 256 at least.
    pub fn note_dear(&self) {
        let before = self.penalty.load(Ordering::Relaxed);
        let penalty = (before * 4).clamp(DEAR_SKIPS_MIN, SKIPS_MAX);
        self.failed_count.store(0, Ordering::Relaxed);
        self.penalty.store(penalty, Ordering::Relaxed);
        self.skips_left.store(penalty, Ordering::Relaxed);
    }

    /// Notes whether a trial has paid. True if it ends the first run that did not, after ones that
    /// did.
    pub fn note(&self, has_paid: bool) -> bool {
        let failed_count = self.failed_count.load(Ordering::Relaxed);
        let failed_count_now = match has_paid {
            true => 0,
            false => (failed_count + 1) % RUN,
        };
        if failed_count_now != failed_count {
            self.failed_count.store(failed_count_now, Ordering::Relaxed);
        }
        if failed_count_now > 0 {
            return false;
        }
        let before = self.penalty.load(Ordering::Relaxed);
        let penalty = match has_paid {
            true => before / 2,
            false => (before * 4).clamp(4, SKIPS_MAX),
        };
        if penalty != before {
            self.penalty.store(penalty, Ordering::Relaxed);
        }
        if penalty > 0 {
            self.skips_left.store(penalty, Ordering::Relaxed);
        }
        before == 0 && !has_paid
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// On which of the next occasions it is tried, if all of the trials pay, or none does.
    fn tried(backoff: &TrialBackoff, count: u32, pay: bool) -> Vec<u32> {
        let is_tried = |_: &u32| {
            let is_due = backoff.is_due();
            if is_due {
                backoff.note(pay);
            }
            is_due
        };
        (0..count).filter(is_tried).collect()
    }

    #[test]
    fn failures_make_trials_rare_and_successes_bring_them_back() {
        let backoff = TrialBackoff::skipping(16);
        assert_eq!(tried(&backoff, 20, true), [16, 17, 18, 19]);
        let rarer = [0, 1, 2, 7, 8, 9, 26, 27, 28, 93, 94, 95];
        assert_eq!(tried(&backoff, 100, false), rarer);
        // 252 are left to skip, then half as many each time.
        assert_eq!(tried(&backoff, 253, true), [252]);
        assert_eq!(tried(&backoff, 1000, true)[..2], [128, 193]);
        assert_eq!(tried(&backoff, 3, true), [0, 1, 2]);
        tried(&backoff, 1_000_000, false);
        let rarest = tried(&backoff, 3 * SKIPS_MAX, false);
        let pauses: Vec<u32> = rarest.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.contains(&(SKIPS_MAX + 1)), "{pauses:?}");
        assert!(
            pauses
                .iter()
                .all(|pause| [1, SKIPS_MAX + 1].contains(pause))
        );
    }

    #[test]
    fn the_first_after_a_pause_may_fail() {
        let backoff = TrialBackoff::skipping(0);
        tried(&backoff, 200, false);
        // Each time the first of a run fails, and the second pays.
        let mut runs = 0;
        for number in 0..100_000 {
            if backoff.is_due() {
                backoff.note(false);
                if backoff.is_due() {
                    backoff.note(true);
                    runs += 1;
                }
            } else if number > 2_000 {
                panic!("trials are not back after {number} occasions");
            }
        }
        assert!(runs > 90_000, "{runs}");
    }

    #[test]
    fn only_the_first_failure_is_told() {
        let backoff = TrialBackoff::skipping(0);
        let told = |outcomes: &[bool]| -> Vec<bool> {
            let told = outcomes.iter().map(|has_paid| backoff.note(*has_paid));
            told.collect()
        };
        assert_eq!(told(&[true, false, false, true]), [false; 4]);
        assert_eq!(told(&[false; 6]), [false, false, true, false, false, false]);
        assert_eq!(told(&[true; 10]), [false; 10]);
        assert_eq!(told(&[false; 3]), [false, false, true]);
    }

    #[test]
    fn what_costs_dearly_is_rare_at_once() {
        let backoff = TrialBackoff::skipping(0);
        assert!(backoff.is_due());
        backoff.note_dear();
        // As after a pause: one that pays has half as many skipped.
        assert_eq!(tried(&backoff, 400, true), [256, 385]);
        // Each in the first trial after the pause before.
        let backoff = TrialBackoff::skipping(0);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            backoff.note_dear();
            let skipped = (0..=SKIPS_MAX).take_while(|_| !backoff.is_due());
            pauses.push(skipped.count());
        }
        assert_eq!(pauses, [256, 1024, 4096, 4096]);
    }
}
