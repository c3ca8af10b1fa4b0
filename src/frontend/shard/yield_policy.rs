//! Letting a core on the same CPU go first.
//!
//! A shard that has submitted requests and has nothing else to do would go to sleep, and the core's
//! reply would wake it. Where shards and cores share CPUs the shard offers its CPU before it arms
//! its door: the replies lie in the mailbox when the shard goes on.

use std::cell::Cell;

use conch_sync::CpuOffers;

use super::runtime::note_spent;
use super::stage::ShardStage;

/// When to offer the CPU. One per shard.
pub(super) struct YieldPolicy {
    is_enabled: bool,
    is_wished: Cell<bool>,
    offers: CpuOffers,
}

impl YieldPolicy {
    pub(super) fn new(is_enabled: bool) -> YieldPolicy {
        YieldPolicy {
            is_enabled,
            is_wished: Cell::new(false),
            offers: CpuOffers::new(),
        }
    }

    /// A request is about to be submitted: whether the shard should offer its CPU before it sleeps.
    pub(super) fn wish(&self) -> bool {
        if self.is_enabled && !self.is_wished.get() {
            self.is_wished.set(self.offers.is_due());
        }
        self.is_wished.get()
    }

    /// There is nothing to wait for.
    pub(super) fn forget(&self) {
        self.is_wished.set(false);
    }

    /// Offers the CPU if that was wished, until `look` finds something or patience ends.
    pub(super) fn offer<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.is_wished.take() {
            return None;
        }
        let (found, took) = self.offers.offer_timed(look);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        note_spent(ShardStage::CpuOffer, took_ns);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_wished_is_offered() {
        let yield_policy = YieldPolicy::new(true);
        assert!(yield_policy.wish() && yield_policy.wish());
        assert_eq!(yield_policy.offer(|| Some(1)), Some(1));
        assert_eq!(yield_policy.offer(|| Some(2)), None, "not wished since");
        let yield_policy = YieldPolicy::new(true);
        assert!(yield_policy.wish());
        yield_policy.forget();
        assert_eq!(yield_policy.offer(|| Some(3)), None);
        for _ in 0..3 {
            // A busy machine may keep the CPU for so long that one was enough.
            if yield_policy.wish() {
                assert_eq!(yield_policy.offer(|| None::<()>), None);
            }
        }
        let wishes = (0..5).filter(|_| yield_policy.wish()).count();
        assert!(wishes <= 1, "{wishes} though the offers were in vain");
    }

    #[test]
    fn off_means_off() {
        let yield_policy = YieldPolicy::new(false);
        assert!(!yield_policy.wish());
        assert_eq!(yield_policy.offer(|| Some(1)), None);
    }
}
