//! Families of conch's own that say how busy each model is, and whom it refused.

use conch_engine::ModelVersion;
use conch_engine::model::stats::{RefusalReason, Totals};

use super::labels::{ModelLabels, SampleLabels};
use super::text::push_head;

/// How busy a model version is.
#[derive(Default)]
pub(super) struct ModelUsage {
    pending_count: u64,
    in_flight_count: u64,
    instance_count: usize,
    busy_count: usize,
    /// Those that are held, and all. Of a model with sequences.
    slots: Option<(usize, usize)>,
    refused: [u64; RefusalReason::ALL.len()],
}

impl ModelUsage {
    pub(super) fn of(model: &ModelVersion, totals: &Totals) -> ModelUsage {
        let usage = model.usage();
        ModelUsage {
            pending_count: totals.pending_count,
            in_flight_count: model.in_flight_count(),
            instance_count: usage.instances.count,
            busy_count: usage.instances.busy_count,
            slots: usage
                .slots
                .map(|slots| (slots.used_count, slots.total_count)),
            refused: totals.refused,
        }
    }
}

struct GaugeFamily {
    name: &'static str,
    help: &'static str,
    /// None where a model has no such thing.
    value: fn(&ModelUsage) -> Option<f64>,
}

const GAUGES: [GaugeFamily; 6] = [
    GaugeFamily {
        name: "conch_inference_pending_requests",
        help: "Requests that wait to be executed",
        value: |usage| Some(usage.pending_count as f64),
    },
    GaugeFamily {
        name: "conch_inference_in_flight_requests",
        help: "Requests that were admitted and are not over: waiting, executing or answering",
        value: |usage| Some(usage.in_flight_count as f64),
    },
    GaugeFamily {
        name: "conch_model_instances",
        help: "Instances that execute requests",
        value: |usage| (usage.instance_count > 0).then_some(usage.instance_count as f64),
    },
    GaugeFamily {
        name: "conch_model_instances_busy",
        help: "Instances that execute a batch at this moment",
        value: |usage| (usage.instance_count > 0).then_some(usage.busy_count as f64),
    },
    GaugeFamily {
        name: "conch_model_sequence_slots",
        help: "Slots for sequences",
        value: |usage| usage.slots.map(|(_, total)| total as f64),
    },
    GaugeFamily {
        name: "conch_model_sequence_slots_used",
        help: "Slots that a sequence holds",
        value: |usage| usage.slots.map(|(used, _)| used as f64),
    },
];

/// Renders the families of `rows`.
pub(super) fn render<'r>(
    text: &mut String,
    rows: impl Iterator<Item = (&'r ModelLabels, &'r ModelUsage)> + Clone,
) {
    for family in &GAUGES {
        let mut has_head = false;
        for (labels, usage) in rows.clone() {
            let Some(value) = (family.value)(usage) else {
                continue;
            };
            if !has_head {
                push_head(text, family.name, family.help, "gauge");
                has_head = true;
            }
            labels.push(text, family.name, SampleLabels::default(), value);
        }
    }
    let name = "conch_inference_refused_total";
    push_head(
        text,
        name,
        "Requests that were refused although nothing is wrong with them",
        "counter",
    );
    for (labels, usage) in rows {
        for (reason, count) in RefusalReason::ALL.iter().zip(usage.refused) {
            let more = SampleLabels {
                reason: Some(reason.name()),
                ..SampleLabels::default()
            };
            labels.push(text, name, more, count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_show_what_they_have() {
        let labels = ModelLabels {
            tags: Vec::new(),
            model: "m".into(),
            namespace: "".into(),
            version: "1".into(),
        };
        let ensemble = ModelUsage {
            in_flight_count: 3,
            refused: [0, 0, 0, 0, 5, 0],
            ..ModelUsage::default()
        };
        let sequences = ModelUsage {
            instance_count: 2,
            busy_count: 1,
            slots: Some((3, 8)),
            ..ModelUsage::default()
        };
        let of = |usage: &ModelUsage| {
            let mut text = String::new();
            render(&mut text, std::iter::once((&labels, usage)));
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let plain = lines.map(|line| line.replace(r#"model="m","#, ""));
            plain
                .filter(|line| !line.ends_with(" 0"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(&ensemble),
            [
                r#"conch_inference_in_flight_requests{version="1"} 3"#,
                r#"conch_inference_refused_total{reason="timeout",version="1"} 5"#,
            ]
        );
        assert_eq!(
            of(&sequences),
            [
                r#"conch_model_instances{version="1"} 2"#,
                r#"conch_model_instances_busy{version="1"} 1"#,
                r#"conch_model_sequence_slots{version="1"} 8"#,
                r#"conch_model_sequence_slots_used{version="1"} 3"#,
            ]
        );
    }
}
