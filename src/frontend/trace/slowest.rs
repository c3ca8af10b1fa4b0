//! The slowest requests of the last second, noted as they end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// Requests that are kept of a second, and shown of a minute.
pub(crate) const SLOWEST_MAX: usize = 16;
/// What is kept of the id that a client gave its request.
const ID_BYTES_MAX: usize = 64;

/// One request, and where it spent its time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SlowRequest {
    /// When it ended, of the wall clock.
    pub(crate) ended_ms: u64,
    pub(crate) model: Box<str>,
    /// None if it named a model that is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<i64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) id: Box<str>,
    pub(crate) outcome: &'static str,
    pub(crate) total_us: u64,
    pub(crate) stages: Vec<(&'static str, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<Box<str>>,
    pub(crate) batch_size: u32,
}

/// Filled by whichever thread lets go of a request last, a shard for the most part, and emptied
/// once per second.
#[derive(Debug, Default)]
pub(crate) struct SlowestRequests {
    /// What a request has to take to be kept.
    floor_us: AtomicU64,
    kept: Mutex<Vec<SlowRequest>>,
}

impl SlowestRequests {
    pub(super) fn new() -> Arc<SlowestRequests> {
        Arc::default()
    }

    /// Keeps the request that `make` describes, if it is among the slowest. Never blocks: one that
    /// ends at the same moment as another may be lost.
    pub(super) fn offer(&self, total_us: u64, make: impl FnOnce() -> SlowRequest) {
        // Relaxed: at worst one is looked at in vain.
        if total_us < self.floor_us.load(Ordering::Relaxed) {
            return;
        }
        let request = make();
        let Ok(mut kept) = self.kept.try_lock() else {
            return;
        };
        let place = kept.partition_point(|other| other.total_us >= total_us);
        kept.insert(place, request);
        kept.truncate(SLOWEST_MAX);
        if let (true, Some(last)) = (kept.len() == SLOWEST_MAX, kept.last()) {
            self.floor_us.store(last.total_us + 1, Ordering::Relaxed);
        }
    }

    /// Those since the last call, the slowest first.
    pub(crate) fn take(&self) -> Vec<SlowRequest> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.floor_us.store(0, Ordering::Relaxed);
        // Another allocation of the same size: none is needed under the lock later.
        std::mem::replace(&mut *kept, Vec::with_capacity(SLOWEST_MAX + 1))
    }
}

/// As much of an id as is kept.
pub(super) fn shortened(id: &str) -> &str {
    let mut end = id.len().min(ID_BYTES_MAX);
    while !id.is_char_boundary(end) {
        end -= 1;
    }
    &id[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(total_us: u64) -> SlowRequest {
        SlowRequest {
            ended_ms: 0,
            model: "m".into(),
            version: None,
            id: "".into(),
            outcome: "ok",
            total_us,
            stages: Vec::new(),
            instance: None,
            batch_size: 0,
        }
    }

    #[test]
    fn the_slowest_of_a_second_are_kept() {
        let slowest = SlowestRequests::new();
        let mut made_count = 0;
        for total_us in (0..100).rev().chain(0..100) {
            slowest.offer(total_us, || {
                made_count += 1;
                request(total_us)
            });
        }
        let totals: Vec<u64> = slowest.take().iter().map(|one| one.total_us).collect();
        let expected: Vec<u64> = (92..100).rev().flat_map(|total| [total; 2]).collect();
        assert_eq!(totals, expected);
        // Of the first run 16; of the second those that are slower than the fastest of these.
        assert_eq!(made_count, 16 + 15);
        assert!(slowest.take().is_empty());
        slowest.offer(1, || request(1));
        assert_eq!(slowest.take().len(), 1);
    }

    #[test]
    fn ids_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = format!("{}ä", "x".repeat(ID_BYTES_MAX - 1));
        assert_eq!(shortened(&long), "x".repeat(ID_BYTES_MAX - 1));
    }
}
