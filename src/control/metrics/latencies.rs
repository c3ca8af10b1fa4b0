//! Families of how long requests take: upstream's summaries and its histogram of first responses,
//! and the histograms of conch's own.

use conch_engine::ModelVersion;
use conch_engine::model::stats::{
    DurationCounts, DurationSummary, FirstResponseCounts, StageCounts, SummaryStage, Totals,
    duration_bounds,
};

use super::labels::{ModelLabels, SampleLabels};
use super::text::push_head;

/// Of no device, then by the UUID of each.
type DeviceSummaries = Vec<(Option<String>, DurationSummary)>;

/// What a model version shows of its latencies.
#[derive(Default)]
pub(super) struct Latencies {
    /// By stage; empty where there are no summaries.
    summaries: Vec<(SummaryStage, DeviceSummaries)>,
    first_responses: Option<FirstResponseCounts>,
    /// Beside the counts the sums of queue, compute and total time in ns.
    histograms: Option<(StageCounts, [u64; 3])>,
    /// How often each size of a batch was executed.
    batches: Vec<(u64, u64)>,
}

impl Latencies {
    /// `devices` are those that have counts of their own.
    pub(super) fn of(
        model: &ModelVersion,
        totals: &Totals,
        devices: &[(Option<i32>, Option<String>)],
    ) -> Latencies {
        let statistics = &model.statistics;
        let stages = SUMMARIES.iter().map(|family| family.stage);
        let mut summaries = Vec::new();
        for stage in stages.filter(|stage| is_shown(*stage, model.config.has_response_cache)) {
            let of_devices = devices.iter().filter_map(|(device_id, uuid)| {
                Some((uuid.clone(), statistics.summary(stage, *device_id)?))
            });
            summaries.push((stage, of_devices.collect()));
        }
        let inference = &totals.inference;
        let compute_ns = [
            inference.compute_input.duration_ns,
            inference.compute_infer.duration_ns,
            inference.compute_output.duration_ns,
        ];
        let sums_ns = [
            inference.queue.duration_ns,
            compute_ns
                .iter()
                .fold(0, |sum: u64, ns| sum.wrapping_add(*ns)),
            inference.success.duration_ns,
        ];
        let batches = totals.batches.values();
        Latencies {
            summaries,
            first_responses: statistics.first_responses(),
            histograms: statistics.durations().map(|counts| (counts, sums_ns)),
            batches: batches
                .map(|batch| (batch.batch_size, batch.compute_infer.count))
                .collect(),
        }
    }
}

/// The request's is not to be had behind a cache, as upstream has it: a miss costs time that is
/// known after the request is over.
fn is_shown(stage: SummaryStage, is_cached: bool) -> bool {
    match stage {
        SummaryStage::Request => !is_cached,
        SummaryStage::CacheHit | SummaryStage::CacheMiss => is_cached,
        _ => true,
    }
}

struct SummaryFamily {
    name: &'static str,
    help: &'static str,
    stage: SummaryStage,
}

const SUMMARIES: [SummaryFamily; 7] = [
    SummaryFamily {
        name: "nv_inference_request_summary_us",
        help: "Summary of inference request duration in microseconds (includes cached requests)",
        stage: SummaryStage::Request,
    },
    SummaryFamily {
        name: "nv_inference_queue_summary_us",
        help: "Summary of inference queuing duration in microseconds (includes cached requests)",
        stage: SummaryStage::Queue,
    },
    SummaryFamily {
        name: "nv_inference_compute_input_summary_us",
        help: "Cumulative compute input duration in microseconds (does not include cached \
               requests)",
        stage: SummaryStage::ComputeInput,
    },
    SummaryFamily {
        name: "nv_inference_compute_infer_summary_us",
        help: "Cumulative compute inference duration in microseconds (does not include cached \
               requests)",
        stage: SummaryStage::ComputeInfer,
    },
    SummaryFamily {
        name: "nv_inference_compute_output_summary_us",
        help: "Cumulative inference compute output duration in microseconds (does not include \
               cached requests)",
        stage: SummaryStage::ComputeOutput,
    },
    SummaryFamily {
        name: "nv_cache_hit_summary_per_model",
        help: "Summary of cache hit counts/durations per model, in microseconds.",
        stage: SummaryStage::CacheHit,
    },
    SummaryFamily {
        name: "nv_cache_miss_summary_per_model",
        help: "Summary of cache miss counts/durations per model, in microseconds.",
        stage: SummaryStage::CacheMiss,
    },
];

/// Renders the summaries, if there are any.
pub(super) fn render_summaries<'r>(
    text: &mut String,
    rows: impl Iterator<Item = (&'r ModelLabels, &'r Latencies)> + Clone,
    quantiles: &[f64],
) {
    for family in &SUMMARIES {
        let mut has_head = false;
        for (labels, latencies) in rows.clone() {
            let stages = latencies.summaries.iter();
            let of_stage = stages.filter(|(stage, _)| *stage == family.stage);
            for (uuid, summary) in of_stage.flat_map(|(_, of_devices)| of_devices) {
                if !has_head {
                    push_head(text, family.name, family.help, "summary");
                    has_head = true;
                }
                push_summary(
                    text,
                    family.name,
                    labels,
                    uuid.as_deref(),
                    summary,
                    quantiles,
                );
            }
        }
    }
}

fn push_summary(
    text: &mut String,
    name: &str,
    labels: &ModelLabels,
    gpu: Option<&str>,
    summary: &DurationSummary,
    quantiles: &[f64],
) {
    let more = SampleLabels {
        gpu,
        ..SampleLabels::default()
    };
    labels.push(text, &format!("{name}_count"), more, summary.count as f64);
    labels.push(text, &format!("{name}_sum"), more, summary.sum_us as f64);
    for quantile in quantiles {
        let value = summary.quantile_us(*quantile);
        let quantile = quantile.to_string();
        let more = SampleLabels {
            last: Some(("quantile", &quantile)),
            ..more
        };
        labels.push(
            text,
            name,
            more,
            value.map_or(f64::NAN, |value| value as f64),
        );
    }
}

/// Renders the histogram of first responses, if there is one.
pub(super) fn render_first_responses<'r>(
    text: &mut String,
    rows: impl Iterator<Item = (&'r ModelLabels, &'r Latencies)>,
) {
    let name = "nv_inference_first_response_histogram_ms";
    let mut has_head = false;
    for (labels, latencies) in rows {
        let Some(seen) = &latencies.first_responses else {
            continue;
        };
        if !has_head {
            let help = "Duration from request to first response in milliseconds";
            push_head(text, name, help, "histogram");
            has_head = true;
        }
        let (bounds, more) = (seen.bounds_ms.iter().copied(), SampleLabels::default());
        labels.push_histogram(text, name, more, bounds, &seen.counts, seen.sum_ms as f64);
    }
}

struct HistogramFamily {
    name: &'static str,
    help: &'static str,
    counts: fn(&StageCounts) -> &DurationCounts,
}

/// In the order of the sums.
const HISTOGRAMS: [HistogramFamily; 3] = [
    HistogramFamily {
        name: "conch_inference_queue_duration_seconds",
        help: "Time that successful requests waited in their model's queue",
        counts: |stages| &stages.queue,
    },
    HistogramFamily {
        name: "conch_inference_compute_duration_seconds",
        help: "Time that successful requests were executed for: input, inference and output",
        counts: |stages| &stages.compute,
    },
    HistogramFamily {
        name: "conch_inference_request_duration_seconds",
        help: "Time that successful requests took from admission to the end of their execution",
        counts: |stages| &stages.total,
    },
];

/// Bounds of the buckets of batch sizes.
const BATCH_BOUNDS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Renders the histograms of models that have answered requests.
pub(super) fn render_histograms<'r>(
    text: &mut String,
    rows: impl Iterator<Item = (&'r ModelLabels, &'r Latencies)> + Clone,
) {
    let used = rows.filter_map(|(labels, latencies)| {
        let (stages, sums_ns) = latencies.histograms.as_ref()?;
        Some((labels, latencies, stages, sums_ns))
    });
    if used.clone().next().is_none() {
        return;
    }
    let more = SampleLabels::default();
    for (place, family) in HISTOGRAMS.iter().enumerate() {
        push_head(text, family.name, family.help, "histogram");
        for (labels, _, stages, sums_ns) in used.clone() {
            let sum = sums_ns.get(place).map_or(0.0, |ns| *ns as f64 / 1e9);
            let counts = (family.counts)(stages).counts();
            labels.push_histogram(text, family.name, more, duration_bounds(), counts, sum);
        }
    }
    let name = "conch_inference_batch_size";
    push_head(text, name, "Inferences per execution", "histogram");
    for (labels, latencies, ..) in used {
        let mut counts = [0; BATCH_BOUNDS.len() + 1];
        let mut sum = 0;
        for (size, count) in &latencies.batches {
            counts[BATCH_BOUNDS.partition_point(|bound| bound < size)] += count;
            sum += size * count;
        }
        let bounds = BATCH_BOUNDS.iter().map(|bound| *bound as f64);
        labels.push_histogram(text, name, more, bounds, &counts, sum as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> ModelLabels {
        ModelLabels {
            tags: Vec::new(),
            model: "m".into(),
            namespace: "".into(),
            version: "1".into(),
        }
    }

    #[test]
    fn what_is_switched_off_prints_nothing() {
        let (labels, latencies) = (labels(), Latencies::default());
        let rows = || std::iter::once((&labels, &latencies));
        let mut text = String::new();
        render_summaries(&mut text, rows(), &[0.5]);
        render_first_responses(&mut text, rows());
        render_histograms(&mut text, rows());
        assert_eq!(text, "");
    }

    #[test]
    fn summaries_have_upstreams_lines() {
        let of_devices = vec![
            (None, DurationSummary::default()),
            (Some("GPU-a".to_owned()), DurationSummary::default()),
        ];
        let latencies = Latencies {
            summaries: vec![(SummaryStage::Queue, of_devices)],
            ..Latencies::default()
        };
        let mut text = String::new();
        let labels = labels();
        let rows = std::iter::once((&labels, &latencies));
        render_summaries(&mut text, rows, &[0.5, 0.999]);
        let head = [
            "# HELP nv_inference_queue_summary_us Summary of inference queuing duration in \
             microseconds (includes cached requests)",
            "# TYPE nv_inference_queue_summary_us summary",
        ];
        let lines = |gpu: &str| {
            let labels = format!(r#"{gpu}model="m",version="1""#);
            let line = |part: &str, more: &str, value: &str| {
                format!("nv_inference_queue_summary_us{part}{{{labels}{more}}} {value}")
            };
            [
                line("_count", "", "0"),
                line("_sum", "", "0"),
                line("", r#",quantile="0.5""#, "Nan"),
                line("", r#",quantile="0.999""#, "Nan"),
            ]
        };
        let of_devices = [lines(""), lines(r#"gpu_uuid="GPU-a","#)].concat();
        let expected: Vec<&str> = head
            .into_iter()
            .chain(of_devices.iter().map(String::as_str))
            .collect();
        let text: Vec<&str> = text.lines().collect();
        assert_eq!(text, expected);
    }

    #[test]
    fn a_cache_decides_which_summaries_there_are() {
        let shown = |is_cached| {
            let stages = SUMMARIES.iter().map(|family| family.stage);
            stages.filter(|stage| is_shown(*stage, is_cached)).count()
        };
        assert_eq!((shown(false), shown(true)), (5, 6));
        assert!(!is_shown(SummaryStage::Request, true));
    }

    #[test]
    fn batch_sizes_are_in_the_bucket_that_takes_them() {
        let latencies = Latencies {
            histograms: Some((StageCounts::default(), [1_500_000_000, 0, 0])),
            batches: vec![(0, 1), (1, 2), (3, 4), (4, 8), (2_000, 16)],
            ..Latencies::default()
        };
        let mut text = String::new();
        let labels = labels();
        render_histograms(&mut text, std::iter::once((&labels, &latencies)));
        let line = |name: &str, le: &str, value: &str| {
            let le = match le {
                "" => String::new(),
                le => format!(",le=\"{le}\""),
            };
            let line = format!("conch_inference_{name}{{model=\"m\",version=\"1\"{le}}} {value}");
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in\n{text}"
            );
        };
        line("queue_duration_seconds_sum", "", "1.5");
        line("queue_duration_seconds_bucket", "0.00001", "0");
        line("batch_size_sum", "", "32046");
        for (le, value) in [
            ("1", "3"),
            ("2", "3"),
            ("4", "15"),
            ("1024", "15"),
            ("+Inf", "31"),
        ] {
            line("batch_size_bucket", le, value);
        }
    }
}
