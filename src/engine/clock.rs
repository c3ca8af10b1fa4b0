//! Readings of the clocks that stamps and statistics are in.
//!
//! The monotonic clock is the one backends read (`std::chrono::steady_clock`), so their stamps and
//! ours can be subtracted.

use std::time::{SystemTime, UNIX_EPOCH};

use conch_sync::Clock;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// CLOCK_MONOTONIC in ns. Never 0 on a running machine, so 0 can mean "not yet".
pub fn monotonic_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    // Both are non-negative on this clock; seconds since boot times 1e9 fit 64 bits for 584 years.
    tv_sec.unsigned_abs() * 1_000_000_000 + tv_nsec.unsigned_abs()
}

/// Wall clock, ms since the Unix epoch; 0 on a machine whose clock stands before it.
pub fn epoch_ms() -> u64 {
    let elapsed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// The clock of cores.
pub(crate) struct Monotonic;

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    #[cfg(loom)]
    fn jump_to(&self, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_does_not_go_back_and_counts_ns() {
        let start = monotonic_ns();
        let instant = std::time::Instant::now();
        // What is measured.
        std::thread::sleep(std::time::Duration::from_millis(5));
        let measured = monotonic_ns() - start;
        let elapsed = u64::try_from(instant.elapsed().as_nanos()).unwrap();
        assert!(start > 0);
        assert!(measured >= 5_000_000 && measured >= elapsed.saturating_sub(1_000_000));
        assert!(
            measured < elapsed + 1_000_000_000,
            "{measured} vs {elapsed}"
        );
    }
}
