//! A rate-limited log for faults that may come with every request, such as those of a plug-in.
//!
//! At most one line per second and subject (the backend of a model, a cache): a backend that errs
//! with every request neither fills a disk nor slows the server. Any thread; does not block.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The lines about one subject.
#[derive(Debug, Default)]
pub struct LogLimiter {
    /// Until when no line is written.
    quiet_until_ns: AtomicU64,
    /// How many were not written since the last line.
    unsaid: AtomicU64,
}

impl LogLimiter {
    /// Writes a line, unless one was written less than a second before `now_ns`; then it is only
    /// counted.
    pub fn tell(&self, now_ns: u64, what: fmt::Arguments<'_>) {
        if let Some(unsaid) = self.turn(now_ns) {
            match unsaid {
                0 => crate::error!("{what}"),
                unsaid => crate::error!("{what} ({unsaid} more complaints since the last one)"),
            }
        }
    }

    /// [`LogLimiter::tell`] of what is no error.
    pub fn warn(&self, now_ns: u64, what: fmt::Arguments<'_>) {
        if let Some(unsaid) = self.turn(now_ns) {
            match unsaid {
                0 => crate::warning!("{what}"),
                unsaid => crate::warning!("{what} ({unsaid} more complaints since the last one)"),
            }
        }
    }

    /// Whether a line may be written now, and how many were not since the last one.
    fn turn(&self, now_ns: u64) -> Option<u64> {
        let quiet_until_ns = self.quiet_until_ns.load(Ordering::Relaxed);
        let is_mine = now_ns >= quiet_until_ns
            && self
                .quiet_until_ns
                .compare_exchange(
                    quiet_until_ns,
                    now_ns + QUIET_NS,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if is_mine {
            return Some(self.unsaid.swap(0, Ordering::Relaxed));
        }
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        None
    }
}

const QUIET_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_second_counts_the_others() {
        let limiter = LogLimiter::default();
        let cases = [
            (5, Some(0)),
            (6, None),
            (QUIET_NS + 4, None),
            (QUIET_NS + 5, Some(2)),
            (QUIET_NS + 6, None),
            (9 * QUIET_NS, Some(1)),
            (10 * QUIET_NS, Some(0)),
        ];
        for (now_ns, expected) in cases {
            assert_eq!(limiter.turn(now_ns), expected, "at {now_ns}");
        }
    }
}
