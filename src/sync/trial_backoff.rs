//! How often something is tried that pays only at times.

use std::sync::atomic::{AtomicU32, Ordering};

/// Occasions that are skipped after failures, at most.
const SKIPS_MAX: u32 = 1 << 12;

/// Whether to try on the next occasion, as far as trials paid before. Each that did not has four
/// times as many occasions skipped as the one before (4 at first, 4,096 at most), each that did one
/// half as many: trials go on where at least two of three pay.
///
/// Several threads may share one. Relaxed: a count that is lost among them does no harm.
#[derive(Debug)]
pub struct TrialBackoff {
    skips_left: AtomicU32,
    penalty: AtomicU32,
}

impl TrialBackoff {
    /// Skips the first occasions.
    pub const fn skipping(first_count: u32) -> TrialBackoff {
        TrialBackoff {
            skips_left: AtomicU32::new(first_count),
            penalty: AtomicU32::new(0),
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

    /// Notes whether a trial has paid. True if it is the first that did not, after ones that did.
    pub fn note(&self, has_paid: bool) -> bool {
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
        assert_eq!(tried(&backoff, 100, false), [0, 5, 22, 87]);
        // 244 are left to skip, then half as many each time.
        assert_eq!(tried(&backoff, 245, true), [244]);
        assert_eq!(tried(&backoff, 1000, true)[..2], [128, 193]);
        assert_eq!(tried(&backoff, 3, true), [0, 1, 2]);
        tried(&backoff, 1_000_000, false);
        let rarest = tried(&backoff, 3 * SKIPS_MAX, false);
        assert_eq!(rarest[1] - rarest[0], SKIPS_MAX + 1);
    }

    #[test]
    fn only_the_first_failure_is_told() {
        let backoff = TrialBackoff::skipping(0);
        let told: Vec<bool> = [true, false, false, true, true, true, false]
            .map(|has_paid| backoff.note(has_paid))
            .into();
        assert_eq!(told, [false, true, false, false, false, false, false]);
    }
}
