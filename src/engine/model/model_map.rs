//! Models by name, as a map that is cheap to copy.
//!
//! Each change of one model makes a new snapshot of all. Copies share all buckets but the one that
//! changes, so that the load of a thousand models does not cost a million entries.

use std::collections::HashMap;
use std::sync::Arc;

const BUCKET_COUNT: usize = 64;

type NameBucket<V> = HashMap<Arc<str>, V>;

/// From a name to what has it.
#[derive(Clone, Debug)]
pub(super) struct ModelMap<V> {
    buckets: Box<[Arc<NameBucket<V>>; BUCKET_COUNT]>,
}

impl<V> Default for ModelMap<V> {
    fn default() -> Self {
        let empty = Arc::new(NameBucket::new());
        ModelMap {
            buckets: Box::new(std::array::from_fn(|_| Arc::clone(&empty))),
        }
    }
}

impl<V: Clone> ModelMap<V> {
    pub(super) fn get(&self, name: &str) -> Option<&V> {
        self.buckets[place(name)].get(name)
    }

    pub(super) fn insert(&mut self, name: Arc<str>, value: V) {
        Arc::make_mut(&mut self.buckets[place(&name)]).insert(name, value);
    }

    pub(super) fn remove(&mut self, name: &str) {
        if self.get(name).is_some() {
            Arc::make_mut(&mut self.buckets[place(name)]).remove(name);
        }
    }

    /// In no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.buckets.iter().flat_map(|bucket| bucket.values())
    }
}

impl<V: Clone> FromIterator<(Arc<str>, V)> for ModelMap<V> {
    fn from_iter<T: IntoIterator<Item = (Arc<str>, V)>>(entries: T) -> Self {
        let mut map = ModelMap::default();
        for (name, value) in entries {
            map.insert(name, value);
        }
        map
    }
}

/// Whoever writes the repository chooses the names, and may well crowd one bucket.
fn place(name: &str) -> usize {
    let hash = name.bytes().fold(0_usize, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(usize::from(byte))
    });
    hash % BUCKET_COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shares_what_does_not_change() {
        let names: Vec<Arc<str>> = (0..1000).map(|n| format!("model_{n}").into()).collect();
        let map: ModelMap<usize> = names.iter().cloned().zip(0..).collect();
        let mut copy = map.clone();
        copy.insert(Arc::clone(&names[7]), 7000);
        copy.remove("model_8");
        copy.remove("nobody");
        assert_eq!(
            (map.get("model_7"), map.get("model_8")),
            (Some(&7), Some(&8))
        );
        assert_eq!(
            (copy.get("model_7"), copy.get("model_8")),
            (Some(&7000), None)
        );
        assert_eq!((map.values().count(), copy.values().count()), (1000, 999));
        let pairs = map.buckets.iter().zip(copy.buckets.iter());
        let unshared = pairs
            .filter(|(one, other)| !Arc::ptr_eq(one, other))
            .count();
        assert_eq!(unshared, 2);
        let largest = map.buckets.iter().map(|bucket| bucket.len()).max();
        assert!(largest < Some(64), "{largest:?}");
    }
}
