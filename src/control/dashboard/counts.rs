//! What a model version has counted, and the difference to what it had counted before.

use std::collections::BTreeMap;

use conch_engine::ModelVersion;
use conch_engine::model::stats::{FailureReason, RefusalReason, Totals};

/// Errors by reason, each kind once: what a queue policy rejects is among the refusals.
const FAILURES: [(FailureReason, &str); 3] = [
    (FailureReason::Canceled, "canceled"),
    (FailureReason::Backend, "backend"),
    (FailureReason::Other, "other"),
];

/// Counts of a model version, of all its time or of some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelCounts {
    pub(super) success: u64,
    /// Without those that are 0.
    pub(super) errors: BTreeMap<&'static str, u64>,
    pub(super) inferences: u64,
    pub(super) executions: u64,
    pub(super) cache_hits: u64,
    pub(super) queue_us: u64,
    pub(super) compute_us: u64,
    /// How often each size of a batch was executed. Without those that are 0.
    pub(super) batches: BTreeMap<u64, u64>,
    /// By bucket of the total time. Without those that are 0.
    pub(super) latency: BTreeMap<usize, u64>,
}

impl ModelCounts {
    /// All that `model` has counted; `totals` are its.
    pub(super) fn of(model: &ModelVersion, totals: &Totals) -> ModelCounts {
        let inference = &totals.inference;
        let failures = FAILURES.iter().map(|(reason, name)| {
            let failures = FailureReason::ALL.iter().zip(totals.failures);
            let count = failures.filter(|(known, _)| *known == reason);
            (*name, count.map(|(_, count)| count).sum::<u64>())
        });
        let refusals = RefusalReason::ALL.iter().zip(totals.refused);
        let refusals = refusals.map(|(reason, count)| (reason.name(), count));
        let durations = model.statistics.durations();
        let buckets = durations.iter().flat_map(|stages| stages.total.counts());
        let compute = [
            inference.compute_input,
            inference.compute_infer,
            inference.compute_output,
        ];
        ModelCounts {
            success: inference.success.count,
            errors: nonzero(failures.chain(refusals)),
            inferences: totals.inference_count,
            executions: totals.execution_count,
            cache_hits: inference.cache_hit.count,
            queue_us: inference.queue.duration_ns / 1_000,
            compute_us: compute
                .iter()
                .fold(0_u64, |sum, stage| sum.wrapping_add(stage.duration_ns))
                / 1_000,
            batches: nonzero(
                totals
                    .batches
                    .values()
                    .map(|batch| (batch.batch_size, batch.compute_infer.count)),
            ),
            latency: nonzero(buckets.copied().enumerate()),
        }
    }

    /// What was counted since `earlier`.
    pub(super) fn since(&self, earlier: &ModelCounts) -> ModelCounts {
        ModelCounts {
            success: self.success.saturating_sub(earlier.success),
            errors: difference(&self.errors, &earlier.errors),
            inferences: self.inferences.saturating_sub(earlier.inferences),
            executions: self.executions.saturating_sub(earlier.executions),
            cache_hits: self.cache_hits.saturating_sub(earlier.cache_hits),
            queue_us: self.queue_us.saturating_sub(earlier.queue_us),
            compute_us: self.compute_us.saturating_sub(earlier.compute_us),
            batches: difference(&self.batches, &earlier.batches),
            latency: difference(&self.latency, &earlier.latency),
        }
    }

    pub(super) fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

fn nonzero<K: Ord>(counts: impl Iterator<Item = (K, u64)>) -> BTreeMap<K, u64> {
    counts.filter(|(_, count)| *count > 0).collect()
}

fn difference<K: Ord + Copy>(
    now: &BTreeMap<K, u64>,
    before: &BTreeMap<K, u64>,
) -> BTreeMap<K, u64> {
    nonzero(now.iter().map(|(key, count)| {
        let earlier = before.get(key).copied().unwrap_or(0);
        (*key, count.saturating_sub(earlier))
    }))
}
