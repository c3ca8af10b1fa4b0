//! One loaded version of a model, as the data plane sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::stats::{ModelStatistics, Statistics};

/// A model version with its configuration, queue and statistics. Shared by registry snapshots, requests and cores.
pub struct ModelVersion {
    pub name: Arc<str>,
    pub version: i64,
    pub config: Arc<conch_config::Model>,
    pub statistics: Statistics,
    /// How long its load took; 0 until it is ready.
    load_duration_ns: AtomicU64,
    pub(crate) live: Arc<AtomicU64>,
    /// Bound of `live`.
    pub(crate) live_max: u64,
}

impl ModelVersion {
    /// A version without instances. `core_count` is how many threads will execute it, `live_max` how many requests it may hold.
    pub fn new(
        name: Arc<str>,
        version: i64,
        config: Arc<conch_config::Model>,
        core_count: usize,
        live_max: u64,
    ) -> ModelVersion {
        let statistics = Statistics::new(core_count, config.max_batch_size);
        ModelVersion {
            name,
            version,
            config,
            statistics,
            load_duration_ns: AtomicU64::new(0),
            live: Arc::default(),
            live_max,
        }
    }

    /// Everything it counted, with its name.
    pub fn model_statistics(&self) -> ModelStatistics {
        let totals = self.statistics.totals();
        ModelStatistics {
            name: Arc::clone(&self.name),
            version: self.version,
            last_inference_ms: totals.last_inference_ms,
            inference_count: totals.inference_count,
            execution_count: totals.execution_count,
            inference: totals.inference,
            responses: totals.responses.into_iter().collect(),
            batches: totals.batches.into_values().collect(),
            memory_usage: totals.memory_usage,
        }
    }

    /// How long loading took; zero until it is ready.
    pub fn load_duration(&self) -> Duration {
        Duration::from_nanos(self.load_duration_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn set_load_duration(&self, duration: Duration) {
        self.load_duration_ns.store(
            u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Requests that were admitted and are not finished: queued, executing or answering.
    pub fn live_count(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }
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
        f.debug_struct("ModelVersion")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish()
    }
}
