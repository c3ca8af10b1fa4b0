//! A loop over seeds: those that are kept, and then a range.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `live` with the seeds that once failed, and then with those below `count`.
///
/// # Panics
/// If `live` does; the message has the seed, which then belongs among the kept ones.
pub fn for_each_seed(kept: &[u64], count: u64, live: impl Fn(u64)) {
    for seed in kept.iter().copied().chain(0..count) {
        let lived = catch_unwind(AssertUnwindSafe(|| live(seed)));
        assert!(lived.is_ok(), "seed {seed}");
    }
}
