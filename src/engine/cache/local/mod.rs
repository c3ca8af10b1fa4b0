//! conch's own cache, `local`: responses in this process' memory, bounded in bytes, the least
//! recently used leave first.
//!
//! Entries lie in segments by their keys' high bits, each behind a lock that is held for some
//! hundred nanoseconds. A shard never waits for one: where a lock is taken (its holder may have
//! lost the CPU) it says so, and the lookup is done on a thread of the cache. Insertions, made by
//! the threads that execute, come one after another, because each has to find the oldest entry of
//! all segments.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::cache::segment::{CacheCounts, Segment};
use crate::cache::{CacheGauge, CacheKey, CachedResponse, ResponseCache};
use crate::clock::monotonic_ns;
use crate::{Code, Error, Response};

/// A response cache in this process.
pub struct LocalCache {
    size_bytes: u64,
    /// What the entries take up. Held while an entry is inserted.
    used_bytes: Mutex<u64>,
    slots: Box<[PaddedSegment]>,
}

/// Aligned so that two segments never share a (paired) cache line.
#[repr(align(128))]
#[derive(Default)]
struct PaddedSegment {
    segment: Mutex<Segment>,
    /// [`Segment::oldest_ns`] as of the last change.
    oldest_ns: AtomicU64,
}

impl LocalCache {
    /// An empty cache for `size_bytes`, book-keeping included.
    pub fn new(size_bytes: u64) -> LocalCache {
        let slot = |_| PaddedSegment {
            oldest_ns: AtomicU64::new(u64::MAX),
            ..PaddedSegment::default()
        };
        LocalCache {
            size_bytes,
            used_bytes: Mutex::new(0),
            slots: (0..SEGMENT_COUNT).map(slot).collect(),
        }
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// What the entries take up.
    pub fn used_bytes(&self) -> u64 {
        *lock(&self.used_bytes)
    }

    fn slot(&self, key: CacheKey) -> &PaddedSegment {
        let bits = (key.0 >> 64) as usize;
        &self.slots[bits % self.slots.len()]
    }

    fn store(&self, key: CacheKey, kept: CachedResponse, start_ns: u64) -> Result<(), Error> {
        let bytes = kept.byte_size();
        if bytes > self.size_bytes {
            return Err(Error::internal(format!(
                "Requested byte_size: {bytes} is greater than total cache size: {}",
                self.size_bytes
            )));
        }
        // Declared first, so that it is dropped last: entries are freed after the locks.
        let mut evicted = Vec::new();
        let mut used_bytes = lock(&self.used_bytes);
        let slot = self.slot(key);
        if lock(&slot.segment).contains(key) {
            return Err(Error::new(
                Code::AlreadyExists,
                format!("key '{key}' already exists"),
            ));
        }
        while *used_bytes + bytes > self.size_bytes {
            let Some((kept, freed_bytes)) = self.evict() else {
                return Err(Error::internal("Cache is empty, nothing to evict."));
            };
            *used_bytes -= freed_bytes;
            evicted.push(kept);
        }
        *used_bytes += bytes;
        let mut segment = lock(&slot.segment);
        let now_ns = monotonic_ns();
        segment.add(key, Arc::new(kept), bytes, now_ns);
        segment.figures.insertion_ns += now_ns.saturating_sub(start_ns);
        slot.update_gauge(&segment);
        Ok(())
    }

    /// Removes the least recently used entry of all.
    fn evict(&self) -> Option<(Arc<CachedResponse>, u64)> {
        loop {
            let age = |slot: &&PaddedSegment| slot.oldest_ns.load(Ordering::Relaxed);
            let slot = self.slots.iter().min_by_key(age)?;
            if age(&slot) == u64::MAX {
                return None;
            }
            let mut segment = lock(&slot.segment);
            let evicted = segment.evict();
            slot.update_gauge(&segment);
            // None: it was noted by mistake, and is corrected now.
            if evicted.is_some() {
                return evicted;
            }
        }
    }
}

impl PaddedSegment {
    fn find(
        &self,
        mut segment: MutexGuard<'_, Segment>,
        key: CacheKey,
    ) -> Option<Arc<CachedResponse>> {
        let start_ns = monotonic_ns();
        let found = segment.find(key, start_ns);
        self.update_gauge(&segment);
        segment.figures.lookup_ns += monotonic_ns().saturating_sub(start_ns);
        found
    }

    fn update_gauge(&self, segment: &Segment) {
        // Relaxed: a hint; who acts on it takes the lock.
        self.oldest_ns.store(segment.oldest_ns(), Ordering::Relaxed);
    }
}

impl ResponseCache for LocalCache {
    fn is_instant(&self) -> bool {
        true
    }

    fn try_lookup(&self, key: CacheKey) -> Option<Result<Option<Arc<CachedResponse>>, Error>> {
        let slot = self.slot(key);
        let segment = match slot.segment.try_lock() {
            Ok(segment) => segment,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Ok(slot.find(segment, key)))
    }

    fn lookup(&self, key: CacheKey) -> Result<Option<Arc<CachedResponse>>, Error> {
        let slot = self.slot(key);
        Ok(slot.find(lock(&slot.segment), key))
    }

    fn insert(&self, key: CacheKey, response: &Response) -> Result<(), Error> {
        let start_ns = monotonic_ns();
        self.store(key, CachedResponse::copy_of(response)?, start_ns)
    }

    fn gauges(&self) -> Vec<CacheGauge> {
        let used_bytes = self.used_bytes();
        let mut figures = CacheCounts::default();
        let mut entry_count = 0;
        for slot in &self.slots {
            let segment = lock(&slot.segment);
            figures.add(&segment.figures);
            entry_count += segment.len();
        }
        figures.gauges(entry_count, used_bytes as f64 / self.size_bytes as f64)
    }
}

impl std::fmt::Debug for LocalCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalCache")
            .field("size_bytes", &self.size_bytes)
            .field("used_bytes", &self.used_bytes())
            .finish_non_exhaustive()
    }
}

/// Twice the most shards that there usually are, so that two rarely meet.
const SEGMENT_COUNT: usize = 16;

/// A panic while a segment was changed is a bug that its own assertion reported; the worst left
/// behind is an entry that is not found.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
