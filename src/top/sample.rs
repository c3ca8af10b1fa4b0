//! The documents of a server's events: what of them is shown.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What does not change.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Layout {
    pub(crate) server: String,
    pub(crate) version: String,
    pub(crate) bounds_us: Vec<u64>,
}

/// One second.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    pub(crate) interval_ms: u64,
    pub(crate) state: String,
    pub(crate) process: Process,
    pub(crate) memory: Memory,
    pub(crate) loads: Vec<Load>,
    pub(crate) models: Vec<ModelSample>,
    pub(crate) left_out: OtherModels,
    pub(crate) network: Network,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    pub(crate) resident_bytes: u64,
    pub(crate) threads: u64,
    pub(crate) cpu_us: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Memory {
    pub(crate) held_bytes: u64,
    pub(crate) limit_bytes: u64,
}

/// A version on its way in or out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Load {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    pub(crate) state: String,
    pub(crate) reason: String,
}

/// A model version, or all of them together.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ModelSample {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) version: i64,
    pub(crate) success: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) inferences: u64,
    pub(crate) executions: u64,
    pub(crate) pending: u64,
    pub(crate) in_flight: u64,
    pub(crate) instances: u64,
    pub(crate) busy: u64,
    pub(crate) batches: Vec<(u64, u64)>,
    pub(crate) latency: Vec<(usize, u64)>,
    pub(crate) timelines: Vec<TimelineSample>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TimelineSample {
    pub(crate) name: String,
    pub(crate) executions: u64,
    pub(crate) cells: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OtherModels {
    pub(crate) models: u64,
    pub(crate) success: u64,
    pub(crate) errors: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Network {
    pub(crate) connections: Vec<(String, u64)>,
    pub(crate) slowest: Vec<SlowSample>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SlowSample {
    pub(crate) model: String,
    pub(crate) id: String,
    pub(crate) outcome: String,
    pub(crate) total_us: u64,
    pub(crate) stages: Vec<(String, u64)>,
}

/// Which model version a row is about.
pub(crate) type ModelKey = (String, String, i64);

impl ModelSample {
    pub(crate) fn key(&self) -> ModelKey {
        (self.namespace.clone(), self.name.clone(), self.version)
    }

    pub(crate) fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Adds what another has counted.
    pub(crate) fn add(&mut self, other: &ModelSample) {
        self.success += other.success;
        self.inferences += other.inferences;
        self.executions += other.executions;
        self.pending += other.pending;
        self.in_flight += other.in_flight;
        self.instances += other.instances;
        self.busy += other.busy;
        for (reason, count) in &other.errors {
            *self.errors.entry(reason.clone()).or_default() += count;
        }
        add_pairs(&mut self.batches, &other.batches);
        add_pairs(&mut self.latency, &other.latency);
        self.timelines.extend_from_slice(&other.timelines);
    }
}

impl Sample {
    /// All models as one.
    pub(crate) fn together(&self) -> ModelSample {
        let mut all = ModelSample::default();
        for model in &self.models {
            all.add(model);
        }
        all.success += self.left_out.success;
        if self.left_out.errors > 0 {
            let rest = all.errors.entry("of models not listed".into()).or_default();
            *rest += self.left_out.errors;
        }
        all
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.interval_ms.max(1) as f64 / 1e3
    }
}

/// Adds counts by their keys.
pub(crate) fn add_pairs<K: Ord + Copy>(sums: &mut Vec<(K, u64)>, more: &[(K, u64)]) {
    for (key, count) in more {
        match sums.binary_search_by_key(key, |(known, _)| *known) {
            Ok(place) => sums[place].1 += count,
            Err(place) => sums.insert(place, (*key, *count)),
        }
    }
}
