//! All families in one text.

use std::sync::Arc;

use conch_engine::Snapshot;
use conch_engine::cache::CacheService;
use conch_engine::gpus::GpuHost;
use conch_memory::Budget;

use super::gpu::GpuMeter;
use super::process::CpuMeter;
use super::text::{push_head, push_sample};
use super::{LongTurns, family, gpu, long_turns, model, process};
use crate::options::EngineOptions;

/// Where the figures come from.
pub(crate) struct MetricSources<'s> {
    pub(crate) options: &'s EngineOptions,
    pub(crate) snapshot: &'s Snapshot,
    pub(crate) cache: Option<&'s CacheService>,
    pub(crate) budget: &'s Budget,
    pub(crate) cpu_meter: &'s CpuMeter,
    pub(crate) gpus: &'s GpuHost,
    pub(crate) gpu_meter: &'s GpuMeter,
    pub(crate) long_turns: &'s [Arc<LongTurns>],
    /// Of whoever serves the metrics.
    pub(crate) more: &'s [FamilySamples],
}

/// A family that another part of the server tells, with one label.
pub struct FamilySamples {
    pub name: &'static str,
    pub help: &'static str,
    /// `gauge` or `counter`.
    pub kind: &'static str,
    pub label: &'static str,
    /// The label's value, and the sample's.
    pub samples: Vec<(&'static str, u64)>,
}

/// All families; empty where metrics are switched off.
pub(crate) fn render(sources: &MetricSources<'_>) -> String {
    let options = sources.options;
    if !options.allow_metrics {
        return String::new();
    }
    let mut text = String::with_capacity(8 << 10);
    let models = sources.snapshot.ready_models();
    model::render(
        &mut text,
        &models,
        sources.gpus,
        options.counter_latencies,
        &options.summary_quantiles,
    );
    if let Some(cache) = sources.cache {
        for gauge in cache.cache().gauges() {
            push_head(&mut text, gauge.name, gauge.help, "gauge");
            push_sample(&mut text, gauge.name, &[], gauge.value);
        }
    }
    process::render_pinned(&mut text, sources.gpus, options.gpu.pinned_pool_bytes);
    process::render_held(&mut text, sources.budget);
    for family in sources.more {
        push_head(&mut text, family.name, family.help, family.kind);
        for (value, sample) in &family.samples {
            let labels = [(family.label, *value)];
            push_sample(&mut text, family.name, &labels, *sample as f64);
        }
    }
    process::render_dropped(&mut text, sources.budget.dropped_count());
    long_turns::render(&mut text, sources.long_turns);
    sources.gpu_meter.render(&mut text);
    gpu::render_pools(&mut text, sources.gpus);
    if options.allow_cpu_metrics {
        sources.cpu_meter.render(&mut text);
    }
    family::render_all(&mut text);
    text
}
