//! The families of the models, rendered from their statistics.

use std::sync::Arc;

use conch_engine::ModelVersion;
use conch_engine::gpus::GpuHost;
use conch_engine::model::stats::{DeviceTotals, FailureReason, Totals};

use super::labels::{ModelLabels, SampleLabels};
use super::latencies::{self, Latencies};
use super::text::push_head;
use super::usage::{self, ModelUsage};

/// One family with a sample per model version, and one more for each GPU that it has an instance
/// on.
struct PerModel {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    value: fn(&DeviceTotals) -> u64,
}

const COUNTS: &[PerModel] = &[
    PerModel {
        name: "nv_inference_count",
        help: "Number of inferences performed (does not include cached requests)",
        kind: "counter",
        value: |totals| totals.inference_count,
    },
    PerModel {
        name: "nv_inference_exec_count",
        help: "Number of model executions performed (does not include cached requests)",
        kind: "counter",
        value: |totals| totals.execution_count,
    },
];

const DURATIONS: &[PerModel] = &[
    PerModel {
        name: "nv_inference_request_duration_us",
        help: "Cumulative inference request duration in microseconds (includes cached requests)",
        kind: "counter",
        value: |totals| totals.inference.success.duration_ns / 1_000,
    },
    PerModel {
        name: "nv_inference_queue_duration_us",
        help: "Cumulative inference queuing duration in microseconds (includes cached requests)",
        kind: "counter",
        value: |totals| totals.inference.queue.duration_ns / 1_000,
    },
    PerModel {
        name: "nv_inference_compute_input_duration_us",
        help: "Cumulative compute input duration in microseconds (does not include cached \
               requests)",
        kind: "counter",
        value: |totals| totals.inference.compute_input.duration_ns / 1_000,
    },
    PerModel {
        name: "nv_inference_compute_infer_duration_us",
        help: "Cumulative compute inference duration in microseconds (does not include cached \
               requests)",
        kind: "counter",
        value: |totals| totals.inference.compute_infer.duration_ns / 1_000,
    },
    PerModel {
        name: "nv_inference_compute_output_duration_us",
        help: "Cumulative inference compute output duration in microseconds (does not include \
               cached requests)",
        kind: "counter",
        value: |totals| totals.inference.compute_output.duration_ns / 1_000,
    },
];

/// Only of models that ask for a cache (whether there is one or not), and only with the durations,
/// as upstream has it.
const CACHE: &[PerModel] = &[
    PerModel {
        name: "nv_cache_num_hits_per_model",
        help: "Number of cache hits per model",
        kind: "counter",
        value: |totals| totals.inference.cache_hit.count,
    },
    PerModel {
        name: "nv_cache_hit_duration_per_model",
        help: "Total cache hit duration per model, in microseconds",
        kind: "counter",
        value: |totals| totals.inference.cache_hit.duration_ns / 1_000,
    },
    PerModel {
        name: "nv_cache_num_misses_per_model",
        help: "Number of cache misses per model",
        kind: "counter",
        value: |totals| totals.inference.cache_miss.count,
    },
    PerModel {
        name: "nv_cache_miss_duration_per_model",
        help: "Total cache miss (insert+lookup) duration per model, in microseconds",
        kind: "counter",
        value: |totals| totals.inference.cache_miss.duration_ns / 1_000,
    },
];

/// Renders all families of `models`, which come sorted. Each model's numbers are read once, so its
/// families agree. `gpus` knows the names of devices.
pub(super) fn render(
    text: &mut String,
    models: &[&Arc<ModelVersion>],
    gpus: &GpuHost,
    with_durations: bool,
    quantiles: &[f64],
) {
    let uuid_of = |device_id| {
        let known = gpus.gpus().iter();
        let mut known = known.filter(|gpu| gpu.properties.ordinal == device_id);
        Some(known.next()?.properties.uuid.clone())
    };
    let rows: Vec<ModelRow> = models
        .iter()
        .map(|model| ModelRow::of(model, uuid_of))
        .collect();
    render_rows(text, &rows, with_durations);
    let latencies = rows.iter().map(|row| (&row.labels, &row.latencies));
    latencies::render_first_responses(text, latencies.clone());
    latencies::render_summaries(text, latencies.clone(), quantiles);
    if !rows.is_empty() {
        usage::render(text, rows.iter().map(|row| (&row.labels, &row.usage)));
    }
    latencies::render_histograms(text, latencies);
}

fn render_rows(text: &mut String, rows: &[ModelRow], with_durations: bool) {
    if rows.is_empty() {
        return;
    }
    push_head(
        text,
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        "counter",
    );
    for row in rows {
        row.push_counts(text, "nv_inference_request_success", |counts| {
            counts.inference.success.count
        });
    }
    push_head(
        text,
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        "counter",
    );
    let failures = "nv_inference_request_failure";
    for row in rows {
        for (gpu, counts) in &row.counts {
            for (reason, count) in FailureReason::ALL.iter().zip(counts.failures) {
                let reason = Some(reason.name());
                row.push(text, failures, gpu.as_deref(), reason, count as f64);
            }
        }
    }
    let durations = if with_durations { DURATIONS } else { &[] };
    for family in COUNTS.iter().chain(durations) {
        push_head(text, family.name, family.help, family.kind);
        for row in rows {
            row.push_counts(text, family.name, family.value);
        }
    }
    push_head(
        text,
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        "gauge",
    );
    for row in rows {
        row.push_whole(
            text,
            "nv_inference_pending_request_count",
            row.pending_count as f64,
        );
    }
    if with_durations && rows.iter().any(|row| row.is_cached) {
        for family in CACHE {
            push_head(text, family.name, family.help, family.kind);
            for row in rows.iter().filter(|row| row.is_cached) {
                row.push_counts(text, family.name, family.value);
            }
        }
    }
    push_head(
        text,
        "nv_model_load_duration_secs",
        "Model load time in seconds",
        "gauge",
    );
    for row in rows {
        row.push_whole(text, "nv_model_load_duration_secs", row.load_seconds);
    }
}

/// One model version's labels and numbers.
struct ModelRow {
    labels: ModelLabels,
    /// What no device's instance reported, then by device what its instances did: the UUID and the
    /// counts.
    counts: Vec<(Option<String>, DeviceTotals)>,
    pending_count: u64,
    load_seconds: f64,
    is_cached: bool,
    latencies: Latencies,
    usage: ModelUsage,
}

impl ModelRow {
    fn of(model: &ModelVersion, uuid_of: impl Fn(i32) -> Option<String>) -> ModelRow {
        let totals = model.metric_totals();
        let named = totals.devices.keys().filter_map(|device_id| {
            let uuid = uuid_of(*device_id)?;
            Some((Some(*device_id), Some(uuid)))
        });
        let devices: Vec<(Option<i32>, Option<String>)> =
            std::iter::once((None, None)).chain(named).collect();
        ModelRow {
            labels: ModelLabels::of(model),
            pending_count: totals.pending_count,
            latencies: Latencies::of(model, &totals, &devices),
            usage: ModelUsage::of(model, &totals),
            counts: counts_of(totals, uuid_of),
            load_seconds: model.load_duration().as_secs_f64(),
            is_cached: model.config.has_response_cache,
        }
    }

    fn push_counts(&self, text: &mut String, name: &str, value: fn(&DeviceTotals) -> u64) {
        for (gpu, counts) in &self.counts {
            self.push(text, name, gpu.as_deref(), None, value(counts) as f64);
        }
    }

    /// What the model has as a whole; upstream shows it as 0 beside a device.
    fn push_whole(&self, text: &mut String, name: &str, value: f64) {
        for (gpu, _) in &self.counts {
            let value = if gpu.is_none() { value } else { 0.0 };
            self.push(text, name, gpu.as_deref(), None, value);
        }
    }

    fn push(
        &self,
        text: &mut String,
        name: &str,
        gpu: Option<&str>,
        reason: Option<&str>,
        value: f64,
    ) {
        let more = SampleLabels {
            gpu,
            reason,
            last: None,
        };
        self.labels.push(text, name, more, value);
    }
}

/// A device without a name counts as none.
fn counts_of(
    mut totals: Totals,
    uuid_of: impl Fn(i32) -> Option<String>,
) -> Vec<(Option<String>, DeviceTotals)> {
    totals
        .devices
        .retain(|device_id, _| uuid_of(*device_id).is_some());
    let mut counts = vec![(None, totals.without_devices())];
    let devices = totals.devices.iter();
    counts.extend(devices.map(|(device_id, figures)| (uuid_of(*device_id), *figures)));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use conch_engine::model::stats::CountAndTime;

    fn labels(tags: &[(&str, &str)], model: &str, namespace: &str, version: &str) -> ModelLabels {
        let tags = tags.iter();
        ModelLabels {
            tags: tags
                .map(|(tag, value)| ((*tag).into(), (*value).into()))
                .collect(),
            model: model.into(),
            namespace: namespace.into(),
            version: version.into(),
        }
    }

    #[test]
    fn families_have_upstreams_names_labels_and_order() {
        let mut totals = Totals {
            inference_count: 12,
            execution_count: 3,
            failures: [1, 2, 3, 4],
            ..Totals::default()
        };
        totals.inference.success = CountAndTime {
            count: 5,
            duration_ns: 1_999_999,
        };
        totals.inference.queue.duration_ns = 2_000_000;
        totals.inference.compute_input.duration_ns = 3_000;
        totals.inference.compute_infer.duration_ns = 4_000;
        totals.inference.compute_output.duration_ns = 999;
        totals.pending_count = 6;
        let row = ModelRow {
            labels: labels(&[("_a", "x\ny")], "m\"", "/r", "3"),
            pending_count: totals.pending_count,
            counts: counts_of(totals, no_gpu),
            load_seconds: 0.25,
            is_cached: false,
            latencies: Latencies::default(),
            usage: ModelUsage::default(),
        };
        let mut text = String::new();
        render_rows(&mut text, &[row], true);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let labels = r#"{_a="x\ny",model="m\"",namespace="/r",version="3"}"#;
        let failure = |reason: &str, count| {
            format!(
                "nv_inference_request_failure{{{}}} {count}",
                r#"_a="x\ny",model="m\"",namespace="/r",reason="REASON",version="3""#
                    .replace("REASON", reason)
            )
        };
        let expected = [
            format!("nv_inference_request_success{labels} 5"),
            failure("REJECTED", 1),
            failure("CANCELED", 2),
            failure("BACKEND", 3),
            failure("OTHER", 4),
            format!("nv_inference_count{labels} 12"),
            format!("nv_inference_exec_count{labels} 3"),
            format!("nv_inference_request_duration_us{labels} 1999"),
            format!("nv_inference_queue_duration_us{labels} 2000"),
            format!("nv_inference_compute_input_duration_us{labels} 3"),
            format!("nv_inference_compute_infer_duration_us{labels} 4"),
            format!("nv_inference_compute_output_duration_us{labels} 0"),
            format!("nv_inference_pending_request_count{labels} 6"),
            format!("nv_model_load_duration_secs{labels} 0.25"),
        ];
        assert_eq!(samples, expected);
        // HELP and TYPE as upstream's 2.51 prints them.
        let heads = [
            "# HELP nv_inference_request_failure Number of failed inference requests, all batch \
             sizes",
            "# TYPE nv_inference_request_failure counter",
            "# HELP nv_inference_compute_output_duration_us Cumulative inference compute output \
             duration in microseconds (does not include cached requests)",
            "# HELP nv_inference_pending_request_count Instantaneous number of pending requests \
             awaiting execution per-model.",
            "# TYPE nv_inference_pending_request_count gauge",
        ];
        for head in heads {
            assert!(
                text.lines().any(|line| line == head),
                "{head} is not in\n{text}"
            );
        }
    }

    fn no_gpu(_: i32) -> Option<String> {
        None
    }

    #[test]
    fn what_instances_on_gpus_report_has_their_devices_label() {
        let counts = |success, rejected| {
            let mut counts = DeviceTotals {
                failures: [rejected, 0, 0, 0],
                ..DeviceTotals::default()
            };
            counts.inference.success.count = success;
            counts
        };
        let mut totals = Totals {
            pending_count: 4,
            failures: [9, 0, 0, 0],
            devices: [(0, counts(3, 0)), (1, counts(2, 1)), (7, counts(1, 0))].into(),
            ..Totals::default()
        };
        totals.inference.success.count = 10;
        let row = ModelRow {
            labels: labels(&[("_a", "x")], "m", "", "1"),
            pending_count: totals.pending_count,
            // Device 7 has no name: what it reported is not lost.
            counts: counts_of(totals, |device| {
                (device < 2).then(|| format!("GPU-{device}"))
            }),
            load_seconds: 0.5,
            is_cached: false,
            latencies: Latencies::default(),
            usage: ModelUsage::default(),
        };
        let mut text = String::new();
        render_rows(&mut text, &[row], true);
        let of = |name: &str, reason: &str| -> Vec<&str> {
            let samples = text.lines().filter(|line| line.starts_with(name));
            samples.filter(|line| line.contains(reason)).collect()
        };
        assert_eq!(
            of("nv_inference_request_success{", ""),
            [
                r#"nv_inference_request_success{_a="x",model="m",version="1"} 5"#,
                r#"nv_inference_request_success{_a="x",gpu_uuid="GPU-0",model="m",version="1"} 3"#,
                r#"nv_inference_request_success{_a="x",gpu_uuid="GPU-1",model="m",version="1"} 2"#,
            ]
        );
        let rejected: Vec<&str> = of("nv_inference_request_failure{", "REJECTED")
            .iter()
            .filter_map(|line| line.rsplit(' ').next())
            .collect();
        assert_eq!(rejected, ["8", "0", "1"]);
        assert_eq!(
            of("nv_inference_pending_request_count{", "GPU-1"),
            [concat!(
                r#"nv_inference_pending_request_count{_a="x",gpu_uuid="GPU-1","#,
                r#"model="m",version="1"} 0"#
            )]
        );
        assert_eq!(of("nv_inference_request_failure{", "").len(), 12);
    }

    #[test]
    fn switched_off_and_empty_families_print_nothing() {
        let mut text = String::new();
        render_rows(&mut text, &[], true);
        assert_eq!(text, "");
        let row = ModelRow {
            labels: labels(&[], "m", "", "1"),
            pending_count: 0,
            counts: counts_of(Totals::default(), no_gpu),
            load_seconds: 0.0,
            is_cached: true,
            latencies: Latencies::default(),
            usage: ModelUsage::default(),
        };
        render_rows(&mut text, &[row], false);
        assert!(!text.contains("_duration_us") && text.contains("nv_inference_count"));
        assert!(!text.contains("nv_cache"));
    }

    #[test]
    fn only_cached_models_have_the_families_of_the_cache() {
        let row = |model: &str, is_cached| {
            let mut totals = Totals::default();
            totals.inference.cache_hit.count = 3;
            totals.inference.cache_hit.duration_ns = 7_900;
            totals.inference.cache_miss.count = 2;
            totals.inference.cache_miss.duration_ns = 5_000;
            ModelRow {
                labels: labels(&[], model, "", "1"),
                pending_count: 0,
                counts: counts_of(totals, no_gpu),
                load_seconds: 0.0,
                is_cached,
                latencies: Latencies::default(),
                usage: ModelUsage::default(),
            }
        };
        let mut text = String::new();
        render_rows(&mut text, &[row("a", true), row("b", false)], true);
        let samples: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("nv_cache"))
            .collect();
        let expected = [
            r#"nv_cache_num_hits_per_model{model="a",version="1"} 3"#,
            r#"nv_cache_hit_duration_per_model{model="a",version="1"} 7"#,
            r#"nv_cache_num_misses_per_model{model="a",version="1"} 2"#,
            r#"nv_cache_miss_duration_per_model{model="a",version="1"} 5"#,
        ];
        assert_eq!(samples, expected);
        let mut text = String::new();
        render_rows(&mut text, &[row("b", false)], true);
        assert!(!text.contains("nv_cache"));
    }
}
