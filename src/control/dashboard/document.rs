//! The documents, as JSON has them. Times and sizes end in their unit.

use conch_engine::request::instance_timeline::InstanceTimeline;
use serde::Serialize;

use super::counts::ModelCounts;
use super::process::ProcessFigures;
use crate::server_metadata::IndexRow;

/// What does not change while the server runs, once for each client.
#[derive(Serialize)]
pub(super) struct LayoutDocument<'a> {
    pub(super) server: &'a str,
    pub(super) version: &'static str,
    pub(super) triton_version: &'static str,
    /// Upper bounds of the buckets of `latency`; there is one bucket more.
    pub(super) bounds_us: Vec<u64>,
    /// False where `--metrics-config=conch_histograms=false` leaves `latency` empty.
    pub(super) has_histograms: bool,
    pub(super) cell_ms: u64,
    pub(super) models_max: usize,
}

/// One second.
#[derive(Serialize)]
pub(super) struct SampleDocument<'a, N> {
    /// Of the wall clock.
    pub(super) time_ms: u64,
    /// For how long was counted.
    pub(super) interval_ms: u64,
    pub(super) state: &'static str,
    pub(super) process: ProcessFigures,
    pub(super) memory: MemoryRow,
    /// Versions on their way in or out, and how many more there are.
    pub(super) loads: Vec<IndexRow>,
    pub(super) loads_left_out: usize,
    /// The busiest first.
    pub(super) models: Vec<SampledModel>,
    pub(super) left_out: UnlistedModels,
    /// What the network side tells.
    pub(super) network: &'a N,
}

/// What requests hold.
#[derive(Serialize)]
pub(super) struct MemoryRow {
    pub(super) held_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) refused: u64,
}

/// One model version.
#[derive(Serialize)]
pub(super) struct SampledModel {
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    pub(super) version: i64,
    pub(super) success: u64,
    pub(super) errors: std::collections::BTreeMap<&'static str, u64>,
    pub(super) inferences: u64,
    pub(super) executions: u64,
    pub(super) cache_hits: u64,
    /// Sums over the requests that succeeded.
    pub(super) queue_us: u64,
    pub(super) compute_us: u64,
    pub(super) pending: u64,
    pub(super) in_flight: u64,
    pub(super) instances: usize,
    pub(super) busy: usize,
    /// Slots of sequences that are held, and all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) slots: Option<(usize, usize)>,
    /// Sizes of batches and how often each was executed.
    pub(super) batches: Vec<(u64, u64)>,
    /// Buckets of the total time and what is in each.
    pub(super) latency: Vec<(usize, u64)>,
    pub(super) timelines: Vec<TimelineRow>,
}

/// One instance in the last second.
#[derive(Serialize)]
pub(super) struct TimelineRow {
    pub(super) name: String,
    pub(super) executions: u64,
    /// A digit for each cell, the oldest first: 0 idle, 9 busy throughout.
    pub(super) cells: String,
}

/// Models beyond those that have a row.
#[derive(Default, Serialize)]
pub(super) struct UnlistedModels {
    pub(super) models: usize,
    pub(super) success: u64,
    pub(super) errors: u64,
}

/// Sizes of batches that have a number of their own.
const SIZES_MAX: usize = 64;

impl SampledModel {
    /// Takes over what was counted.
    pub(super) fn count(&mut self, counts: ModelCounts) {
        self.success = counts.success;
        self.errors = counts.errors;
        self.inferences = counts.inferences;
        self.executions = counts.executions;
        self.cache_hits = counts.cache_hits;
        self.queue_us = counts.queue_us;
        self.compute_us = counts.compute_us;
        self.batches = counts.batches.into_iter().take(SIZES_MAX).collect();
        self.latency = counts.latency.into_iter().collect();
    }
}

impl TimelineRow {
    pub(super) fn of(timeline: &InstanceTimeline, cell_us: u64) -> TimelineRow {
        let digit = |busy_us: &u16| match u64::from(*busy_us) {
            0 => '0',
            busy_us => {
                // What is brief shows; only what lasts throughout is 9.
                let level = (busy_us * 9 / cell_us.max(1)).clamp(1, 9);
                u32::try_from(level)
                    .ok()
                    .and_then(|level| char::from_digit(level, 10))
                    .unwrap_or('9')
            }
        };
        TimelineRow {
            name: timeline.name.to_string(),
            executions: timeline.execution_count,
            cells: timeline.busy_us.iter().map(digit).collect(),
        }
    }
}
