//! The clock of statistics: CLOCK_MONOTONIC, which the server stamps with too.

/// Nanoseconds since an arbitrary start, the same for the whole machine. Never goes back.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable for the duration of the call; this clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // Both fields are non-negative for this clock, and 2^64 ns are 584 years.
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
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
