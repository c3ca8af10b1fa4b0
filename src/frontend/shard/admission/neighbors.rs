//! Shards whose requests wait for room in the server.
//!
//! A shard that has requests in flight sees first when room comes back, and could keep it all to
//! itself. So each shows since when its first request waits, and one whose own waits for less time
//! leaves the last room to the others.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shards look for room every millisecond at least: so much later may a request be let in than one
/// of another shard that came at the same time.
const SLACK_NS: u64 = 5_000_000;
const NOBODY: u64 = u64::MAX;

/// One entry per shard; each writes its own.
#[derive(Debug)]
pub(crate) struct WaitingShards {
    since_ns: Box<[AtomicU64]>,
}

impl WaitingShards {
    pub(crate) fn new(shard_count: usize) -> WaitingShards {
        WaitingShards {
            since_ns: (0..shard_count).map(|_| AtomicU64::new(NOBODY)).collect(),
        }
    }

    /// The first of the shard's requests waits since then; none: nobody waits.
    pub(super) fn show(&self, index: usize, since_ns: Option<u64>) {
        if let Some(shown) = self.since_ns.get(index) {
            // Relaxed: nothing else is read by it, and late is good enough.
            shown.store(since_ns.unwrap_or(NOBODY), Ordering::Relaxed);
        }
    }

    /// Whether the first request of another shard waits since clearly before `since_ns`.
    pub(super) fn has_older(&self, index: usize, since_ns: u64) -> bool {
        let others = self.since_ns.iter().enumerate();
        let mut others = others.filter(|(other, _)| *other != index);
        others.any(|(_, shown)| shown.load(Ordering::Relaxed).saturating_add(SLACK_NS) < since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_longest_has_nobody_before_it() {
        let shards = WaitingShards::new(3);
        let has_older = |index, since_ms: u64| shards.has_older(index, since_ms * 1_000_000);
        assert!(!has_older(0, 1000), "nobody waits");
        for (index, since_ms) in [(0, 100), (1, 104), (2, 200)] {
            shards.show(index, Some(since_ms * 1_000_000));
        }
        assert!(!has_older(0, 100));
        assert!(!has_older(1, 104), "hardly later");
        assert!(has_older(2, 200));
        assert!(has_older(1, 300), "its next, behind the first of another");
        shards.show(0, None);
        shards.show(1, None);
        assert!(!has_older(2, 200) && !has_older(2, 300), "only itself");
    }
}
