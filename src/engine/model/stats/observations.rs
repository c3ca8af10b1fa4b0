//! What is kept of a version's requests beside the sums: histograms, and where the metrics'
//! configuration asks for them, summaries and the times to first responses.
//!
//! Made on first use and from then on written without a lock, by whoever writes the sums.
//! Histograms have at most two copies, so that cores that share a model seldom share a cache line:
//! 8 KB.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::stats::ExecutionSpan;
use crate::model::stats::durations::{DurationCounts, DurationHistogram};
use crate::model::stats::window::{DurationSummary, SummaryWindow};

/// What a server keeps of its models' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservationOptions {
    /// Histograms of queue, compute and total time.
    pub histograms: bool,
    /// `summary_latencies`.
    pub summaries: bool,
    /// `histogram_latencies`: the time to the first response.
    pub first_responses: bool,
}

impl Default for ObservationOptions {
    fn default() -> ObservationOptions {
        ObservationOptions {
            histograms: true,
            summaries: false,
            first_responses: false,
        }
    }
}

/// Stages of a request that have a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SummaryStage {
    Request,
    Queue,
    ComputeInput,
    ComputeInfer,
    ComputeOutput,
    CacheHit,
    CacheMiss,
}

/// How many stages there are.
const STAGE_COUNT: usize = SummaryStage::CacheMiss as usize + 1;
const HISTOGRAM_COPIES_MAX: usize = 2;
/// One of no device, one for each device that can have cells.
const SUMMARY_SETS: usize = super::DEVICES_MAX + 1;

type StageWindows = [SummaryWindow; STAGE_COUNT];

/// See the module.
pub(super) struct Observations {
    histograms: Box<[StageHistograms]>,
    /// By device, with that of no device first. Empty if they are switched off.
    summaries: Box<[OnceLock<Box<StageWindows>>]>,
    first_responses: Option<BoundedHistogram>,
}

/// Where the durations of one thread go.
struct StageHistograms {
    queue: DurationHistogram,
    compute: DurationHistogram,
    total: DurationHistogram,
}

/// A request that succeeded.
pub(super) struct Success {
    pub(super) now_ns: u64,
    pub(super) total_ns: u64,
    pub(super) queue_ns: u64,
}

impl Observations {
    /// `bounds_ms` are those of the histogram of first responses.
    pub(super) fn new(
        options: ObservationOptions,
        cell_count: usize,
        bounds_ms: &[f64],
    ) -> Observations {
        let copies = match options.histograms {
            true => cell_count.min(HISTOGRAM_COPIES_MAX),
            false => 0,
        };
        let sets = if options.summaries { SUMMARY_SETS } else { 0 };
        Observations {
            histograms: (0..copies).map(|_| StageHistograms::new()).collect(),
            summaries: (0..sets).map(|_| OnceLock::new()).collect(),
            first_responses: options
                .first_responses
                .then(|| BoundedHistogram::new(bounds_ms)),
        }
    }

    /// Whether its histogram of first responses has these buckets, if it has one.
    pub(super) fn has_bounds(&self, bounds_ms: &[f64]) -> bool {
        let histogram = self.first_responses.as_ref();
        histogram.is_none_or(|histogram| *histogram.bounds == *bounds_ms)
    }

    /// A request that executed. `writer` numbers the thread.
    pub(super) fn note_execution(
        &self,
        writer: usize,
        device_id: Option<i32>,
        success: &Success,
        span: &ExecutionSpan,
    ) {
        let [input_ns, infer_ns, output_ns] = [span.input_ns(), span.infer_ns(), span.output_ns()];
        if let Some(histograms) = self.histograms_of(writer) {
            histograms.queue.observe(success.queue_ns);
            let compute_ns = input_ns.wrapping_add(infer_ns).wrapping_add(output_ns);
            histograms.compute.observe(compute_ns);
            histograms.total.observe(success.total_ns);
        }
        if let Some(windows) = self.windows_of(device_id) {
            for (stage, duration_ns) in [
                (SummaryStage::Request, success.total_ns),
                (SummaryStage::Queue, success.queue_ns),
                (SummaryStage::ComputeInput, input_ns),
                (SummaryStage::ComputeInfer, infer_ns),
                (SummaryStage::ComputeOutput, output_ns),
            ] {
                windows[stage as usize].observe(duration_ns, success.now_ns);
            }
        }
    }

    /// A request that the response cache answered.
    pub(super) fn note_cache_hit(&self, writer: usize, success: &Success, lookup_ns: u64) {
        if let Some(histograms) = self.histograms_of(writer) {
            histograms.queue.observe(success.queue_ns);
            histograms.total.observe(success.total_ns);
        }
        if let Some(windows) = self.windows_of(None) {
            windows[SummaryStage::Request as usize].observe(success.total_ns, success.now_ns);
            windows[SummaryStage::Queue as usize].observe(success.queue_ns, success.now_ns);
            windows[SummaryStage::CacheHit as usize].observe(lookup_ns, success.now_ns);
        }
    }

    pub(super) fn note_cache_miss(&self, overhead_ns: u64, now_ns: u64) {
        if let Some(windows) = self.windows_of(None) {
            windows[SummaryStage::CacheMiss as usize].observe(overhead_ns, now_ns);
        }
    }

    pub(super) fn note_first_response(&self, duration_ns: u64) {
        if let Some(histogram) = &self.first_responses {
            histogram.observe(duration_ns / 1_000_000);
        }
    }

    fn histograms_of(&self, writer: usize) -> Option<&StageHistograms> {
        // One or two.
        self.histograms.get(writer & 1).or(self.histograms.first())
    }

    fn windows_of(&self, device_id: Option<i32>) -> Option<&StageWindows> {
        let set = device_id.map_or(0, |device_id| {
            usize::try_from(device_id).map_or(0, |index| index.saturating_add(1))
        });
        let windows = self.summaries.get(set).or(self.summaries.first())?;
        Some(windows.get_or_init(|| Box::new(std::array::from_fn(|_| SummaryWindow::new()))))
    }

    /// What the histograms hold; none if they are switched off.
    pub(super) fn durations(&self) -> Option<StageCounts> {
        if self.histograms.is_empty() {
            return None;
        }
        let mut sums = StageCounts::default();
        for copy in &self.histograms {
            copy.queue.add_to(&mut sums.queue);
            copy.compute.add_to(&mut sums.compute);
            copy.total.add_to(&mut sums.total);
        }
        Some(sums)
    }

    /// What the summary of `stage` holds of that device.
    pub(super) fn summary(
        &self,
        stage: SummaryStage,
        device_id: Option<i32>,
        now_ns: u64,
    ) -> DurationSummary {
        let windows = self.windows_of(device_id);
        windows.map_or_else(DurationSummary::default, |windows| {
            windows[stage as usize].read(now_ns)
        })
    }

    pub(super) fn first_responses(&self) -> Option<FirstResponseCounts> {
        self.first_responses.as_ref().map(BoundedHistogram::read)
    }
}

impl StageHistograms {
    fn new() -> StageHistograms {
        StageHistograms {
            queue: DurationHistogram::new(),
            compute: DurationHistogram::new(),
            total: DurationHistogram::new(),
        }
    }
}

/// What a version's histograms held at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageCounts {
    pub queue: DurationCounts,
    pub compute: DurationCounts,
    pub total: DurationCounts,
}

/// A histogram of the bounds that a configuration gives, in ms.
struct BoundedHistogram {
    /// Strictly increasing.
    bounds: Box<[f64]>,
    /// One more than bounds: the last is everything above.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl BoundedHistogram {
    fn new(bounds: &[f64]) -> BoundedHistogram {
        BoundedHistogram {
            bounds: bounds.into(),
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    fn observe(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value as f64);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    fn read(&self) -> FirstResponseCounts {
        FirstResponseCounts {
            bounds_ms: self.bounds.to_vec(),
            counts: self
                .counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .collect(),
            sum_ms: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// What the histogram of first responses held at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FirstResponseCounts {
    pub bounds_ms: Vec<f64>,
    /// By bucket: one more than bounds.
    pub counts: Vec<u64>,
    /// Of whole milliseconds, as upstream counts them.
    pub sum_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_of_a_version_fit_into_8_kib() {
        assert!(size_of::<StageHistograms>() * HISTOGRAM_COPIES_MAX <= 8 << 10);
        let of_cells = |cell_count| {
            let options = ObservationOptions::default();
            let observations = Observations::new(options, cell_count, &[]);
            (observations.histograms.len(), observations.summaries.len())
        };
        assert_eq!([1, 2, 64].map(of_cells), [(1, 0), (2, 0), (2, 0)]);
    }

    #[test]
    fn first_responses_are_in_the_bucket_of_their_whole_milliseconds() {
        let options = ObservationOptions {
            histograms: false,
            first_responses: true,
            ..ObservationOptions::default()
        };
        let observations = Observations::new(options, 1, &[100.0, 500.0]);
        for duration_us in [0, 100_999, 101_000, 500_999, 501_000, 7_000_000] {
            observations.note_first_response(duration_us * 1_000);
        }
        let seen = observations.first_responses().unwrap();
        assert_eq!((seen.counts, seen.sum_ms), (vec![2, 2, 2], 8_202));
        assert!(observations.has_bounds(&[100.0, 500.0]) && !observations.has_bounds(&[1.0]));
        assert!(observations.durations().is_none());
    }
}
