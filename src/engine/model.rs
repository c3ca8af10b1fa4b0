//! One loaded version of a model, as the data plane sees it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use conch_config::Scheduling;

use crate::admit::Plan;
use crate::order::Order;
use crate::queue::{Bounds, Queue};
use crate::readiness::Board;
use crate::stats::{ModelStatistics, Statistics};

/// A model version with its configuration, queue and statistics. Shared by registry snapshots, requests and cores.
pub struct ModelVersion {
    pub name: Arc<str>,
    pub version: i64,
    pub config: Arc<conch_config::Model>,
    pub statistics: Statistics,
    /// How long its load took; 0 until it is ready.
    load_duration_ns: AtomicU64,
    live: AtomicU64,
    /// Bound of `live`.
    live_max: u64,
    /// What admission needs of the configuration, worked out once.
    pub(crate) plan: Plan,
    /// Bounds of the queue policy.
    pub(crate) bounds: Bounds,
    /// Present under preserve-ordering.
    pub(crate) order: Option<Arc<Order>>,
    /// Present once the cores are started.
    pub(crate) queue: OnceLock<Arc<Queue>>,
    /// Present once the cores are started, if the backend has a readiness hook.
    pub(crate) inspection: OnceLock<Arc<Board>>,
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
        let is_ordered = matches!(&config.scheduling, Scheduling::Dynamic(settings) if settings.is_preserving_order);
        let statistics = Statistics::new(core_count, config.max_batch_size);
        ModelVersion {
            name,
            version,
            statistics,
            load_duration_ns: AtomicU64::new(0),
            live: AtomicU64::new(0),
            live_max,
            plan: Plan::new(&config),
            bounds: Bounds::new(&config),
            order: is_ordered.then(Arc::default),
            queue: OnceLock::new(),
            inspection: OnceLock::new(),
            config,
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

/// A model together with a place among its live requests, which is freed on drop.
pub struct Reservation {
    model: Arc<ModelVersion>,
}

impl Reservation {
    /// None if the model has as many live requests as it may.
    pub(crate) fn new(model: &Arc<ModelVersion>) -> Option<Reservation> {
        if model.live.fetch_add(1, Ordering::Relaxed) >= model.live_max {
            model.live.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Reservation {
            model: Arc::clone(model),
        })
    }
}

impl std::ops::Deref for Reservation {
    type Target = Arc<ModelVersion>;

    fn deref(&self) -> &Arc<ModelVersion> {
        &self.model
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Release pairs with the Acquire of `live_count`: who sees none left sees what the last one did.
        self.model.live.fetch_sub(1, Ordering::Release);
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
