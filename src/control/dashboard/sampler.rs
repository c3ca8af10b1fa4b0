//! Reads the counters, and writes a document with what has changed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use conch_engine::ModelVersion;
use conch_engine::model::readiness::ReadinessAnswer;
use conch_engine::model::stats::{Totals, duration_bounds};
use conch_engine::request::instance_timeline::TIMELINE_CELL_NS;
use serde::Serialize;

use super::counts::ModelCounts;
use super::document::{
    LayoutDocument, MemoryRow, SampleDocument, SampledModel, TimelineRow, UnlistedModels,
};
use super::process::ProcessFigures;
use crate::json::to_json;
use crate::server::Server;

/// Models that have a row in a document: a row is 2 KiB where much happens.
pub const MODELS_MAX: usize = 100;
/// Versions on their way that have one.
const LOADS_MAX: usize = 50;
/// Instances with a timeline in a document, of 150 bytes each, and of one model.
const TIMELINES_MAX: usize = 256;
const MODEL_TIMELINES_MAX: usize = 64;

/// Namespace, name and version.
type VersionKey = (Arc<str>, Arc<str>, i64);

/// See the module.
pub struct DashboardSampler {
    server: Arc<Server>,
    /// As of the last look.
    counts: HashMap<VersionKey, ModelCounts>,
    process: ProcessFigures,
    memory_refused: u64,
    taken: Instant,
    /// Models whose instances are watched. Not kept from going.
    watched: HashMap<VersionKey, Weak<ModelVersion>>,
}

/// A model version as it is read for a document.
struct ReadModel<'m> {
    model: &'m Arc<ModelVersion>,
    counts: ModelCounts,
    pending_count: u64,
    in_flight_count: u64,
}

impl DashboardSampler {
    /// Has looked already: the first document tells what has changed since.
    pub fn new(server: Arc<Server>) -> DashboardSampler {
        let mut sampler = DashboardSampler {
            process: ProcessFigures::read(),
            memory_refused: server.budget().refused_count(),
            counts: HashMap::new(),
            taken: Instant::now(),
            watched: HashMap::new(),
            server,
        };
        let snapshot = sampler.server.registry().snapshot();
        for model in snapshot.ready_models() {
            let counts = ModelCounts::of(model, &model.metric_totals());
            sampler.counts.insert(key_of(model), counts);
        }
        sampler
    }

    /// What does not change.
    pub fn layout(server: &Server) -> String {
        let metadata = server.metadata();
        to_json(&LayoutDocument {
            server: &metadata.name,
            version: env!("CARGO_PKG_VERSION"),
            triton_version: metadata.version,
            bounds_us: duration_bounds()
                .map(|bound| (bound * 1e6).round() as u64)
                .collect(),
            has_histograms: server.options().duration_histograms,
            cell_ms: TIMELINE_CELL_NS / 1_000_000,
            models_max: MODELS_MAX,
        })
    }

    /// What has changed since the last document, with what `network` tells. Blocks as long as
    /// somebody changes the table of models.
    pub fn sample(&mut self, network: &impl Serialize) -> String {
        let server = Arc::clone(&self.server);
        let now = Instant::now();
        let interval = now.saturating_duration_since(self.taken);
        let process = ProcessFigures::read();
        let refused_count = server.budget().refused_count();
        let mut loads = server.lifecycle().changing();
        let loads_left_out = loads.len().saturating_sub(LOADS_MAX);
        loads.truncate(LOADS_MAX);
        let (models, left_out) = self.models();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let document = SampleDocument {
            time_ms: millis(wall.unwrap_or_default().as_millis()),
            interval_ms: millis(interval.as_millis()),
            state: state_of(&server),
            process: process.since(self.process),
            memory: MemoryRow {
                held_bytes: server.budget().used_bytes(),
                limit_bytes: server.budget().limit_bytes(),
                refused: refused_count.saturating_sub(self.memory_refused),
            },
            loads,
            loads_left_out,
            models,
            left_out,
            network,
        };
        self.taken = now;
        self.process = process;
        self.memory_refused = refused_count;
        to_json(&document)
    }

    /// The rows of the busiest models, and the sum of the others.
    fn models(&mut self) -> (Vec<SampledModel>, UnlistedModels) {
        let snapshot = self.server.registry().snapshot();
        let mut read = Vec::new();
        let mut fresh = HashMap::new();
        for model in snapshot.ready_models() {
            let (key, totals) = (key_of(model), model.metric_totals());
            let now = ModelCounts::of(model, &totals);
            let nothing = ModelCounts::default();
            let counts = now.since(self.counts.get(&key).unwrap_or(&nothing));
            fresh.insert(key, now);
            read.push(ReadModel::new(model, counts, &totals));
        }
        self.counts = fresh;
        read.sort_by(|one, other| {
            let busy = other.busyness().cmp(&one.busyness());
            busy.then_with(|| key_of(one.model).cmp(&key_of(other.model)))
        });
        let rest = read.split_off(read.len().min(MODELS_MAX));
        let left_out = rest
            .iter()
            .fold(UnlistedModels::default(), |sum, model| UnlistedModels {
                models: sum.models + 1,
                success: sum.success + model.counts.success,
                errors: sum.errors + model.counts.error_count(),
            });
        self.watch(read.iter().map(|read| read.model));
        let mut timelines_left = TIMELINES_MAX;
        let rows = read
            .into_iter()
            .map(|read| read.into_row(&mut timelines_left))
            .collect();
        (rows, left_out)
    }

    /// Watches the instances of these models, and of no others.
    fn watch<'m>(&mut self, models: impl Iterator<Item = &'m Arc<ModelVersion>>) {
        let fresh: HashMap<VersionKey, Weak<ModelVersion>> = models
            .map(|model| (key_of(model), Arc::downgrade(model)))
            .collect();
        let old = std::mem::replace(&mut self.watched, fresh);
        for (key, model) in old {
            let still = self.watched.get(&key);
            if still.is_none_or(|still| !still.ptr_eq(&model))
                && let Some(model) = model.upgrade()
            {
                model.end_watch();
            }
        }
    }
}

impl Drop for DashboardSampler {
    fn drop(&mut self) {
        self.watch(std::iter::empty());
    }
}

impl<'m> ReadModel<'m> {
    fn new(model: &'m Arc<ModelVersion>, counts: ModelCounts, totals: &Totals) -> ReadModel<'m> {
        ReadModel {
            model,
            counts,
            pending_count: totals.pending_count,
            in_flight_count: model.in_flight_count(),
        }
    }

    /// The more, the further ahead.
    fn busyness(&self) -> (u64, u64, u64) {
        let request_count = self
            .counts
            .success
            .saturating_add(self.counts.error_count());
        (request_count, self.pending_count, self.in_flight_count)
    }

    fn into_row(self, timelines_left: &mut usize) -> SampledModel {
        let model = self.model;
        let usage = model.usage();
        let mut timelines = model.timelines();
        timelines.truncate(MODEL_TIMELINES_MAX.min(*timelines_left));
        *timelines_left -= timelines.len();
        let cell_us = TIMELINE_CELL_NS / 1_000;
        let mut row = SampledModel {
            name: model.name.to_string(),
            namespace: model.namespace.to_string(),
            version: model.version,
            success: 0,
            errors: Default::default(),
            inferences: 0,
            executions: 0,
            cache_hits: 0,
            queue_us: 0,
            compute_us: 0,
            pending: self.pending_count,
            in_flight: self.in_flight_count,
            instances: usage.instances.count,
            busy: usage.instances.busy_count,
            slots: usage
                .slots
                .map(|slots| (slots.used_count, slots.total_count)),
            batches: Vec::new(),
            latency: Vec::new(),
            timelines: timelines
                .iter()
                .map(|timeline| TimelineRow::of(timeline, cell_us))
                .collect(),
        };
        row.count(self.counts);
        row
    }
}

fn key_of(model: &ModelVersion) -> VersionKey {
    (
        Arc::clone(&model.namespace),
        Arc::clone(&model.name),
        model.version,
    )
}

fn state_of(server: &Server) -> &'static str {
    if server.is_stopping() {
        return "stopping";
    }
    if server.is_draining() {
        return "draining";
    }
    match server.readiness() {
        // Backends are not asked for this.
        ReadinessAnswer::Known(true) | ReadinessAnswer::Asked(_) => "ready",
        ReadinessAnswer::Known(false) => "not ready",
    }
}

fn millis(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
