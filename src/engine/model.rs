//! One loaded version of a model, as the data plane sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A model version with its configuration, queue and statistics. Shared by registry snapshots, requests and cores.
pub struct ModelVersion {
    pub name: Arc<str>,
    pub version: i64,
    pub config: Arc<conch_config::Model>,
    pub(crate) live: Arc<AtomicU64>,
}

/// A place among a model's live requests; freed on drop.
pub struct Reservation {
    live: Arc<AtomicU64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for ModelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelVersion").field("name", &self.name).field("version", &self.version).finish()
    }
}
