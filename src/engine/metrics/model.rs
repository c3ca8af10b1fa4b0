//! The families of the models, rendered from their statistics.

use std::sync::Arc;

use super::{push_head, push_sample};
use crate::ModelVersion;
use crate::stats::{Failure, Totals};

/// One family with a sample per model version.
struct PerModel {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    value: fn(&Totals) -> u64,
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
        help: "Cumulative compute input duration in microseconds (does not include cached requests)",
        kind: "counter",
        value: |totals| totals.inference.compute_input.duration_ns / 1_000,
    },
    PerModel {
        name: "nv_inference_compute_infer_duration_us",
        help: "Cumulative compute inference duration in microseconds (does not include cached requests)",
        kind: "counter",
        value: |totals| totals.inference.compute_infer.duration_ns / 1_000,
    },
    PerModel {
        name: "nv_inference_compute_output_duration_us",
        help: "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        kind: "counter",
        value: |totals| totals.inference.compute_output.duration_ns / 1_000,
    },
];

const PENDING: PerModel = PerModel {
    name: "nv_inference_pending_request_count",
    help: "Instantaneous number of pending requests awaiting execution per-model.",
    kind: "gauge",
    value: |totals| totals.pending_count,
};

/// Renders all families of `models`, which come sorted. Each model's numbers are read once, so its families agree.
pub(super) fn render(text: &mut String, models: &[&Arc<ModelVersion>], with_durations: bool) {
    if models.is_empty() {
        return;
    }
    let rows: Vec<Row> = models.iter().map(|model| Row::of(model)).collect();
    push_family(
        text,
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        "counter",
    );
    for row in &rows {
        row.push(
            text,
            "nv_inference_request_success",
            None,
            row.totals.inference.success.count as f64,
        );
    }
    push_family(
        text,
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        "counter",
    );
    for row in &rows {
        for (reason, count) in Failure::ALL.iter().zip(row.totals.failures) {
            row.push(
                text,
                "nv_inference_request_failure",
                Some(reason.name()),
                count as f64,
            );
        }
    }
    let durations = if with_durations { DURATIONS } else { &[] };
    for family in COUNTS.iter().chain(durations).chain([&PENDING]) {
        push_family(text, family.name, family.help, family.kind);
        for row in &rows {
            row.push(text, family.name, None, (family.value)(&row.totals) as f64);
        }
    }
    push_family(
        text,
        "nv_model_load_duration_secs",
        "Model load time in seconds",
        "gauge",
    );
    for row in &rows {
        row.push(text, "nv_model_load_duration_secs", None, row.load_seconds);
    }
}

fn push_family(text: &mut String, name: &str, help: &str, kind: &str) {
    push_head(text, name, help, kind);
}

/// One model version's labels and numbers.
struct Row {
    /// Sorted by name, as the upstream serializer does: `_tag` labels, `model`, then `reason`, then `version`.
    tags: Vec<(String, String)>,
    model: Arc<str>,
    version: String,
    totals: Totals,
    load_seconds: f64,
}

impl Row {
    fn of(model: &ModelVersion) -> Row {
        let mut tags: Vec<(String, String)> = model
            .config
            .message
            .metric_tags
            .iter()
            .map(|(tag, value)| (format!("_{}", label_name(tag)), value.clone()))
            .collect();
        tags.sort();
        Row {
            tags,
            model: Arc::clone(&model.name),
            version: model.version.to_string(),
            totals: model.statistics.totals(),
            load_seconds: model.load_duration().as_secs_f64(),
        }
    }

    fn push(&self, text: &mut String, name: &str, reason: Option<&str>, value: f64) {
        let mut labels: Vec<(&str, &str)> = self
            .tags
            .iter()
            .map(|(tag, value)| (tag.as_str(), value.as_str()))
            .collect();
        labels.push(("model", &self.model));
        labels.extend(reason.map(|reason| ("reason", reason)));
        labels.push(("version", &self.version));
        push_sample(text, name, &labels, value);
    }
}

/// A tag's characters that a label may not have become `_`: a hostile configuration must not break the exposition for all others.
fn label_name(tag: &str) -> String {
    tag.chars()
        .map(|character| {
            if character.is_ascii_alphanumeric() {
                character
            } else {
                '_'
            }
        })
        .collect()
}
