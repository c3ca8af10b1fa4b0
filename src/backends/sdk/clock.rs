//! The clock of statistics: CLOCK_MONOTONIC, which the server stamps with too.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds since an arbitrary start, the same for the whole machine. Never goes back.
pub fn monotonic_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    // Both fields are non-negative for this clock, and 2^64 ns are 584 years.
    tv_sec
        .unsigned_abs()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(tv_nsec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    #[test]
    fn never_goes_back() {
        let mut last = super::monotonic_ns();
        assert!(last > 0);
        for _ in 0..1000 {
            let now = super::monotonic_ns();
            assert!(now >= last);
            last = now;
        }
    }
}
