//! The active sequences of a version that is being replaced: their requests stay in that version.
//!
//! Begun when the version is about to be replaced. The scheduler lists what it has, and afterwards
//! says what has ended; who submits the start of a sequence meanwhile adds that itself. Shards ask
//! for every request of a sequence without a start, for as long as any is left.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use conch_scheduler::SequenceKey;

/// Keys of the sequences that stay in a version. A name that stays although its sequence has ended
/// does no harm: its requests are refused where they are sent, in the same words.
#[derive(Debug, Default)]
pub(crate) struct ActiveSequences {
    /// With each, whether it is still under way.
    listed: OnceLock<HashMap<SequenceKey, AtomicBool>>,
    /// Those that began since. Locked for one look-up at a time, and by shards only if there are
    /// any: of requests that had their place in the version when it was replaced.
    late: Mutex<HashSet<SequenceKey>>,
    has_late: AtomicBool,
    /// Those that began anew elsewhere, which their scheduler does not know yet.
    restarted: Mutex<Vec<SequenceKey>>,
    has_restarted: AtomicBool,
}

impl ActiveSequences {
    /// What the scheduler has.
    pub(crate) fn list(&self, keys: Vec<SequenceKey>) {
        let listed = keys.into_iter().map(|key| (key, AtomicBool::new(true)));
        self.listed.get_or_init(|| listed.collect());
    }

    /// A request that starts this sequence was submitted.
    pub(crate) fn add(&self, key: SequenceKey) {
        match self.flag(&key) {
            Some(flag) => flag.store(true, Ordering::Release),
            None => {
                let mut late = lock(&self.late);
                late.insert(key);
                self.has_late.store(true, Ordering::Release);
            }
        }
    }

    /// These take no more requests.
    pub(crate) fn close(&self, keys: impl Iterator<Item = SequenceKey>) {
        for key in keys {
            self.forget(&key);
        }
    }

    /// Whether this sequence is under way here.
    pub(crate) fn has(&self, key: &SequenceKey) -> bool {
        self.flag(key)
            .is_some_and(|flag| flag.load(Ordering::Acquire))
            || (self.has_late.load(Ordering::Acquire) && lock(&self.late).contains(key))
    }

    /// This sequence begins anew elsewhere. Returns whether it was under way here.
    pub(crate) fn restart(&self, key: &SequenceKey) -> bool {
        let was_here = self.forget(key);
        if was_here {
            lock(&self.restarted).push(key.clone());
            self.has_restarted.store(true, Ordering::Release);
        }
        was_here
    }

    /// What the scheduler is to end.
    pub(crate) fn restarted(&self) -> Vec<SequenceKey> {
        // The load first: cores ask with every batch.
        if self.has_restarted.load(Ordering::Relaxed)
            && self.has_restarted.swap(false, Ordering::AcqRel)
        {
            return std::mem::take(&mut lock(&self.restarted));
        }
        Vec::new()
    }

    fn forget(&self, key: &SequenceKey) -> bool {
        let was_listed = self
            .flag(key)
            .is_some_and(|flag| flag.swap(false, Ordering::AcqRel));
        let was_late = self.has_late.load(Ordering::Acquire) && lock(&self.late).remove(key);
        was_listed || was_late
    }

    fn flag(&self, key: &SequenceKey) -> Option<&AtomicBool> {
        self.listed.get()?.get(key)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Changed by single insertions and removals only.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> SequenceKey {
        SequenceKey::Unsigned(number)
    }

    #[test]
    fn a_name_is_there_from_its_start_to_its_end() {
        let active_sequences = ActiveSequences::default();
        // Submitted while the scheduler was not asked yet.
        active_sequences.add(key(1));
        active_sequences.list(vec![key(1), key(2), SequenceKey::Text("2".into())]);
        active_sequences.add(key(3));
        let present = |active_sequences: &ActiveSequences| -> Vec<u64> {
            (0..5)
                .filter(|number| active_sequences.has(&key(*number)))
                .collect()
        };
        assert_eq!(present(&active_sequences), vec![1, 2, 3]);
        active_sequences.close([key(1), key(3), key(4)].into_iter());
        assert_eq!(present(&active_sequences), vec![2]);
        active_sequences.add(key(3));
        active_sequences.add(key(1));
        assert_eq!(present(&active_sequences), vec![1, 2, 3]);
        assert!(active_sequences.has(&SequenceKey::Text("2".into())));
        assert!(!active_sequences.has(&SequenceKey::Text("1".into())));
    }

    #[test]
    fn what_begins_anew_elsewhere_is_to_be_ended_here() {
        let active_sequences = ActiveSequences::default();
        active_sequences.list(vec![key(1), key(2)]);
        assert!(active_sequences.restart(&key(2)));
        assert!(!active_sequences.restart(&key(2)), "it is gone");
        assert!(!active_sequences.restart(&key(3)), "it was never here");
        assert!(active_sequences.has(&key(1)) && !active_sequences.has(&key(2)));
        assert_eq!(active_sequences.restarted(), [key(2)]);
        assert_eq!(active_sequences.restarted(), []);
    }
}
