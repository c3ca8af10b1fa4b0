//! All families in one text.

use std::borrow::Cow;

use conch_engine::Snapshot;
use conch_engine::cache::CacheService;
use conch_engine::gpus::GpuHost;
use conch_memory::Budget;

use super::gpu::GpuMeter;
use super::process::CpuMeter;
use super::text::{push_head, push_sample};
use super::{FamilyKind, family, gpu, model, process};
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
    /// Of whoever serves the metrics.
    pub(crate) more: &'s [FamilySamples],
}

/// A family that whoever serves the metrics tells of itself. One without samples prints nothing.
pub struct FamilySamples {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: FamilyKind,
    pub samples: Vec<LabelledValue>,
}

/// A sample of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledValue {
    /// In the order in which they are shown.
    pub labels: Vec<(&'static str, Cow<'static, str>)>,
    pub value: f64,
}

impl FamilySamples {
    fn render(&self, text: &mut String) {
        if self.samples.is_empty() {
            return;
        }
        push_head(text, self.name, self.help, self.kind.type_name());
        for sample in &self.samples {
            let labels = sample.labels.iter().map(|(name, value)| (*name, &**value));
            let labels: Vec<(&str, &str)> = labels.collect();
            push_sample(text, self.name, &labels, sample.value);
        }
    }
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
    sources
        .more
        .iter()
        .for_each(|family| family.render(&mut text));
    process::render_dropped(&mut text, sources.budget.dropped_count());
    sources.gpu_meter.render(&mut text);
    gpu::render_pools(&mut text, sources.gpus);
    if options.allow_cpu_metrics {
        sources.cpu_meter.render(&mut text);
    }
    family::render_all(&mut text);
    text
}

/// The families of backends and embedders alone; empty where metrics are switched off.
pub(crate) fn render_custom(options: &EngineOptions) -> String {
    let mut text = String::new();
    if options.allow_metrics {
        family::render_all(&mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_others_have_their_labels_in_order() {
        let family = |samples| FamilySamples {
            name: "f_total",
            help: "What it counts",
            kind: FamilyKind::Counter,
            samples,
        };
        let mut text = String::new();
        family(Vec::new()).render(&mut text);
        assert_eq!(text, "");
        let sample = LabelledValue {
            labels: vec![("z", "1".into()), ("a", "x\"".into())],
            value: 2.5,
        };
        family(vec![sample]).render(&mut text);
        let expected = "# HELP f_total What it counts\n# TYPE f_total counter\n\
                        f_total{z=\"1\",a=\"x\\\"\"} 2.5\n";
        assert_eq!(text, expected);
    }
}
