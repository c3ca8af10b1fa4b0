//! The figures themselves: what is counted, in the forms that reports, statistics and metrics
//! exchange.

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_memory::MemoryKind;

use crate::model::stats::refusals::RefusalReason;

/// Why a request failed; the `reason` label of `nv_inference_request_failure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// Its queue policy refused it after it was queued.
    Rejected,
    /// Cancelled before it executed.
    Canceled,
    /// The backend failed it.
    Backend,
    Other,
}

impl FailureReason {
    pub const ALL: [FailureReason; 4] = [
        FailureReason::Rejected,
        FailureReason::Canceled,
        FailureReason::Backend,
        FailureReason::Other,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            FailureReason::Rejected => "REJECTED",
            FailureReason::Canceled => "CANCELED",
            FailureReason::Backend => "BACKEND",
            FailureReason::Other => "OTHER",
        }
    }
}

/// When one execution reached its stages, monotonic ns, as the backend reports it. Later stages may
/// not precede earlier ones; where they do (a backend that leaves a stage 0), the stage counts as 0
/// ns long.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecutionSpan {
    pub exec_start_ns: u64,
    pub compute_start_ns: u64,
    pub compute_end_ns: u64,
    pub exec_end_ns: u64,
}

/// How often, and for how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountAndTime {
    pub count: u64,
    pub duration_ns: u64,
}

impl CountAndTime {
    pub(super) fn add(&mut self, duration_ns: u64) {
        self.count += 1;
        self.duration_ns = self.duration_ns.wrapping_add(duration_ns);
    }
}

/// `inference_stats` of the statistics extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InferenceStatistics {
    pub success: CountAndTime,
    pub fail: CountAndTime,
    pub queue: CountAndTime,
    pub compute_input: CountAndTime,
    pub compute_infer: CountAndTime,
    pub compute_output: CountAndTime,
    pub cache_hit: CountAndTime,
    pub cache_miss: CountAndTime,
}

/// One entry of `response_stats`: what became of the n-th responses of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseStatistics {
    pub compute_infer: CountAndTime,
    pub compute_output: CountAndTime,
    pub success: CountAndTime,
    pub fail: CountAndTime,
    pub empty_response: CountAndTime,
    pub cancel: CountAndTime,
}

/// One entry of `batch_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    pub batch_size: u64,
    pub compute_input: CountAndTime,
    pub compute_infer: CountAndTime,
    pub compute_output: CountAndTime,
}

/// One entry of `memory_usage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    pub kind: MemoryKind,
    pub id: i64,
    pub bytes: u64,
}

/// All of a model version's numbers at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStatistics {
    pub name: Arc<str>,
    pub version: i64,
    /// Wall clock of the latest execution, 0 if none.
    pub last_inference_ms: u64,
    pub inference_count: u64,
    pub execution_count: u64,
    pub inference: InferenceStatistics,
    /// By response index, ascending.
    pub responses: Vec<(u64, ResponseStatistics)>,
    /// By batch size, ascending.
    pub batches: Vec<BatchStatistics>,
    pub memory_usage: Vec<MemoryUsage>,
}

/// The sums behind statistics and metrics, without names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub last_inference_ms: u64,
    pub inference_count: u64,
    pub execution_count: u64,
    pub inference: InferenceStatistics,
    /// Indexed as [`FailureReason::ALL`].
    pub failures: [u64; 4],
    pub responses: BTreeMap<u64, ResponseStatistics>,
    pub batches: BTreeMap<u64, BatchStatistics>,
    pub memory_usage: Vec<MemoryUsage>,
    /// Requests queued now.
    pub pending_count: u64,
    /// Indexed as [`RefusalReason::ALL`].
    pub refused: [u64; RefusalReason::ALL.len()],
    /// What instances on GPUs reported, by the ordinal of the device; part of the counts above.
    pub devices: BTreeMap<i32, DeviceTotals>,
}

/// What the instances on one device reported: the counts that metrics show with its label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTotals {
    pub inference_count: u64,
    pub execution_count: u64,
    pub inference: InferenceStatistics,
    /// Indexed as [`FailureReason::ALL`].
    pub failures: [u64; 4],
}

impl DeviceTotals {
    /// The counts of `totals`, of all devices and none.
    pub fn of(totals: &Totals) -> DeviceTotals {
        DeviceTotals {
            inference_count: totals.inference_count,
            execution_count: totals.execution_count,
            inference: totals.inference,
            failures: totals.failures,
        }
    }

    /// Adds `other` to each count, or takes it away.
    fn combine(&mut self, other: &DeviceTotals, apply: fn(u64, u64) -> u64) {
        self.inference_count = apply(self.inference_count, other.inference_count);
        self.execution_count = apply(self.execution_count, other.execution_count);
        for (mine, theirs) in self.failures.iter_mut().zip(other.failures) {
            *mine = apply(*mine, theirs);
        }
        self.inference.combine(&other.inference, apply);
    }
}

impl InferenceStatistics {
    fn combine(&mut self, other: &InferenceStatistics, apply: fn(u64, u64) -> u64) {
        for (mine, theirs) in [
            (&mut self.success, other.success),
            (&mut self.fail, other.fail),
            (&mut self.queue, other.queue),
            (&mut self.compute_input, other.compute_input),
            (&mut self.compute_infer, other.compute_infer),
            (&mut self.compute_output, other.compute_output),
            (&mut self.cache_hit, other.cache_hit),
            (&mut self.cache_miss, other.cache_miss),
        ] {
            mine.count = apply(mine.count, theirs.count);
            mine.duration_ns = apply(mine.duration_ns, theirs.duration_ns);
        }
    }
}

impl Totals {
    /// The counts that belong to no device: of instances on CPUs, and of requests that no instance
    /// reported.
    pub fn without_devices(&self) -> DeviceTotals {
        let mut rest = DeviceTotals::of(self);
        for figures in self.devices.values() {
            rest.combine(figures, u64::wrapping_sub);
        }
        rest
    }

    /// Adds the counts of another version that metrics show under the same name.
    pub(crate) fn include(&mut self, other: &Totals) {
        self.pending_count += other.pending_count;
        let mut counts = DeviceTotals::of(self);
        counts.combine(&DeviceTotals::of(other), u64::wrapping_add);
        self.inference_count = counts.inference_count;
        self.execution_count = counts.execution_count;
        self.inference = counts.inference;
        self.failures = counts.failures;
        for (mine, theirs) in self.refused.iter_mut().zip(other.refused) {
            *mine += theirs;
        }
        for (batch_size, theirs) in &other.batches {
            let mine = self.batches.entry(*batch_size).or_default();
            mine.batch_size = *batch_size;
            mine.merge(theirs);
        }
        for (device_id, theirs) in &other.devices {
            let mine = self.devices.entry(*device_id).or_default();
            mine.combine(theirs, u64::wrapping_add);
        }
    }
}

/// What happened to one response, for
/// [`Statistics::report_response`](crate::model::stats::Statistics::report_response). Times are
/// monotonic ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseReport {
    /// `output_start_ns` 0 on a failed response: no output was written.
    Sent {
        success: bool,
        start_ns: u64,
        output_start_ns: u64,
        end_ns: u64,
    },
    Empty {
        start_ns: u64,
        end_ns: u64,
    },
    Cancelled {
        start_ns: u64,
        end_ns: u64,
    },
}

impl ResponseStatistics {
    pub(super) fn merge(&mut self, other: &ResponseStatistics) {
        let pairs = [
            (&mut self.compute_infer, other.compute_infer),
            (&mut self.compute_output, other.compute_output),
            (&mut self.success, other.success),
            (&mut self.fail, other.fail),
            (&mut self.empty_response, other.empty_response),
            (&mut self.cancel, other.cancel),
        ];
        for (mine, theirs) in pairs {
            mine.count += theirs.count;
            mine.duration_ns = mine.duration_ns.wrapping_add(theirs.duration_ns);
        }
    }
}

impl BatchStatistics {
    fn merge(&mut self, other: &BatchStatistics) {
        for (mine, theirs) in [
            (&mut self.compute_input, other.compute_input),
            (&mut self.compute_infer, other.compute_infer),
            (&mut self.compute_output, other.compute_output),
        ] {
            mine.count += theirs.count;
            mine.duration_ns = mine.duration_ns.wrapping_add(theirs.duration_ns);
        }
    }
}

impl ExecutionSpan {
    pub(crate) fn input_ns(&self) -> u64 {
        self.compute_start_ns.saturating_sub(self.exec_start_ns)
    }

    pub(crate) fn infer_ns(&self) -> u64 {
        self.compute_end_ns.saturating_sub(self.compute_start_ns)
    }

    pub(crate) fn output_ns(&self) -> u64 {
        self.exec_end_ns.saturating_sub(self.compute_end_ns)
    }
}
