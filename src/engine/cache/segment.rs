//! A part of the local cache: entries by key, in the order of their last use.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::cache::{CacheGauge, CacheKey, CachedResponse};

/// A part of the cache with a lock of its own. Times are monotonic ns.
#[derive(Default)]
pub(super) struct Segment {
    places: HashMap<CacheKey, usize, BuildHasherDefault<KeyHasher>>,
    /// The entries, linked from the most to the least recently used.
    nodes: Vec<CacheNode>,
    free: Vec<usize>,
    newest: Option<usize>,
    oldest: Option<usize>,
    pub(super) figures: CacheCounts,
}

struct CacheNode {
    key: CacheKey,
    kept: Option<Arc<CachedResponse>>,
    bytes: u64,
    used_ns: u64,
    newer: Option<usize>,
    older: Option<usize>,
}

/// What the cache counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheCounts {
    pub(super) lookup_count: u64,
    pub(super) hit_count: u64,
    pub(super) eviction_count: u64,
    pub(super) lookup_ns: u64,
    pub(super) insertion_ns: u64,
}

impl Segment {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn contains(&self, key: CacheKey) -> bool {
        self.places.contains_key(&key)
    }

    /// When the entry that goes first was used last; `u64::MAX` if there is none.
    pub(super) fn oldest_ns(&self) -> u64 {
        self.oldest
            .and_then(|place| self.nodes.get(place))
            .map_or(u64::MAX, |node| node.used_ns)
    }

    /// Finds an entry and makes it the most recently used.
    pub(super) fn find(&mut self, key: CacheKey, now_ns: u64) -> Option<Arc<CachedResponse>> {
        self.figures.lookup_count += 1;
        let place = *self.places.get(&key)?;
        self.unlink(place);
        self.link(place, now_ns);
        self.figures.hit_count += 1;
        self.nodes[place].kept.clone()
    }

    /// Adds an entry under a key that is not there.
    pub(super) fn add(
        &mut self,
        key: CacheKey,
        kept: Arc<CachedResponse>,
        bytes: u64,
        now_ns: u64,
    ) {
        let node = CacheNode {
            key,
            kept: Some(kept),
            bytes,
            used_ns: now_ns,
            newer: None,
            older: None,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.link(place, now_ns);
        let earlier = self.places.insert(key, place);
        debug_assert!(earlier.is_none(), "the caller has looked");
    }

    /// Removes the least recently used entry: it and its bytes.
    pub(super) fn evict(&mut self) -> Option<(Arc<CachedResponse>, u64)> {
        let place = self.oldest?;
        self.unlink(place);
        let node = &mut self.nodes[place];
        self.places.remove(&node.key);
        self.free.push(place);
        self.figures.eviction_count += 1;
        let bytes = node.bytes;
        node.kept.take().map(|kept| (kept, bytes))
    }

    /// Puts an unlinked entry in front.
    fn link(&mut self, place: usize, now_ns: u64) {
        let older = self.newest.replace(place);
        let node = &mut self.nodes[place];
        (node.newer, node.older, node.used_ns) = (None, older, now_ns);
        match older {
            Some(older) => self.nodes[older].newer = Some(place),
            None => self.oldest = Some(place),
        }
    }

    fn unlink(&mut self, place: usize) {
        let (newer, older) = (self.nodes[place].newer, self.nodes[place].older);
        match newer {
            Some(newer) => self.nodes[newer].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.nodes[older].newer = newer,
            None => self.oldest = newer,
        }
    }
}

impl CacheCounts {
    pub(super) fn add(&mut self, other: &CacheCounts) {
        self.lookup_count += other.lookup_count;
        self.hit_count += other.hit_count;
        self.eviction_count += other.eviction_count;
        self.lookup_ns += other.lookup_ns;
        self.insertion_ns += other.insertion_ns;
    }

    /// In upstream's names and words; those of its local cache.
    pub(super) fn gauges(&self, entry_count: usize, utilization: f64) -> Vec<CacheGauge> {
        let miss_count = self.lookup_count - self.hit_count;
        let row = |name, help, value| CacheGauge { name, help, value };
        vec![
            row(
                "nv_cache_num_entries",
                "Number of responses stored in response cache",
                entry_count as f64,
            ),
            row(
                "nv_cache_num_lookups",
                "Number of cache lookups in response cache",
                self.lookup_count as f64,
            ),
            row(
                "nv_cache_num_hits",
                "Number of cache hits in response cache",
                self.hit_count as f64,
            ),
            row(
                "nv_cache_num_misses",
                "Number of cache misses in response cache",
                miss_count as f64,
            ),
            row(
                "nv_cache_num_evictions",
                "Number of cache evictions in response cache",
                self.eviction_count as f64,
            ),
            row(
                "nv_cache_lookup_duration",
                "Total cache lookup duration (hit and miss), in microseconds",
                (self.lookup_ns / 1_000) as f64,
            ),
            row(
                "nv_cache_insertion_duration",
                "Total cache insertion duration, in microseconds",
                (self.insertion_ns / 1_000) as f64,
            ),
            row(
                "nv_cache_util",
                "Cache utilization [0.0 - 1.0]",
                utilization,
            ),
        ]
    }
}

/// Keys are hashes already: any 64 bits of one will do.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for (place, byte) in bytes.iter().enumerate() {
            self.0 ^= u64::from(*byte) << (8 * (place % 8));
        }
    }

    fn write_u128(&mut self, key: u128) {
        // The low half; the high one chose the segment.
        self.0 = key as u64;
    }
}
