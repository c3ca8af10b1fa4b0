//! Counts of a model version: requests, inferences, executions, durations, batches, responses.
//!
//! Numbers live in cells, one per core: each thread writes its own, under a sequence lock, so
//! writers share no cache line and a reader never sees half an update. A thread beyond the number
//! of cells shares one; then the sequence word also keeps writers apart. Everything is counted
//! before the reply is visible to the client; that is the duty of the callers, which are the core
//! threads and backends' own threads. What instances on a GPU report goes to cells of the device,
//! which only versions with such instances have. Readers (statistics, metrics) run on whatever
//! thread asks.

mod cell;
mod durations;
mod figures;
mod observations;
mod refusals;
#[cfg(test)]
mod tests;
mod window;

use std::cell::Cell as ThreadCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use conch_memory::MemoryKind;

use crate::Timestamps;
use crate::clock::{epoch_ms, monotonic_ns};
use crate::model::stats::cell::{BATCH_SIZES_MAX, CELLS_MAX, CellField, StatsCell};
use crate::model::stats::observations::{Observations, Success};
use crate::request::features::FirstResponse;

pub use crate::model::stats::durations::{DurationCounts, duration_bounds};
pub use crate::model::stats::figures::{
    BatchStatistics, CountAndTime, DeviceTotals, ExecutionSpan, FailureReason, InferenceStatistics,
    MemoryUsage, ModelStatistics, ResponseReport, ResponseStatistics, Totals,
};
pub use crate::model::stats::observations::{
    FirstResponseCounts, ObservationOptions, StageCounts, SummaryStage,
};
pub use crate::model::stats::refusals::RefusalReason;
pub use crate::model::stats::window::DurationSummary;

/// The counters of one model version.
pub struct Statistics {
    cells: Box<[StatsCell]>,
    /// What instances on GPUs report, by the ordinal of their device. Made with the first of them.
    device_cells: OnceLock<DeviceCells>,
    size_count: usize,
    /// Batches larger than the cells' tables hold. Behind a lock because such sizes are rare.
    large_batches: Mutex<BTreeMap<u64, BatchStatistics>>,
    /// Behind a lock because only decoupled models report them, and each response costs far more
    /// than the lock.
    responses: Mutex<BTreeMap<u64, ResponseStatistics>>,
    memory_usage: Mutex<BTreeMap<(MemoryOwner, u8, i64), u64>>,
    /// Made on first use, or those of the version whose place this one took.
    observations: OnceLock<Arc<Observations>>,
    options: ObservationOptions,
    first_response_bounds_ms: Box<[f64]>,
    /// Indexed as [`RefusalReason::ALL`].
    refused: [AtomicU64; RefusalReason::ALL.len()],
}

/// Per device as many cells as the version has; none for a device without an instance.
type DeviceCells = Box<[OnceLock<Box<[StatsCell]>>]>;

/// Devices with figures of their own, more than one machine holds. What instances on others report
/// counts as of no device.
const DEVICES_MAX: usize = 64;

/// Responses of a request with numbers of their own. A model may answer without end, and each index
/// that was ever reached has a row for as long as the version is loaded: 8 MB of them at most.
const INDEX_MAX: u64 = (64 << 10) - 1;

/// Who reported memory: the model (0) or one of its instances (1 and up).
pub type MemoryOwner = u64;

impl Statistics {
    /// Counters for a version with `core_count` cores and batches of up to `batch_size_max`.
    pub fn new(
        core_count: usize,
        batch_size_max: u32,
        options: ObservationOptions,
        first_response_bounds_ms: &[f64],
    ) -> Statistics {
        let cell_count = core_count.clamp(1, CELLS_MAX);
        let size_count = usize::try_from(batch_size_max)
            .unwrap_or(usize::MAX)
            .clamp(1, BATCH_SIZES_MAX);
        Statistics {
            cells: new_cells(cell_count, size_count),
            device_cells: OnceLock::new(),
            size_count,
            large_batches: Mutex::default(),
            responses: Mutex::default(),
            memory_usage: Mutex::default(),
            observations: OnceLock::new(),
            options,
            first_response_bounds_ms: first_response_bounds_ms.into(),
            refused: Default::default(),
        }
    }

    /// Goes on with the histograms and summaries of `predecessor`, whose place its version takes.
    /// Before the first report. Buckets that the configuration changed begin anew.
    pub(crate) fn succeed(&self, predecessor: &Statistics) {
        let theirs = predecessor.observations();
        if predecessor.options == self.options && theirs.has_bounds(&self.first_response_bounds_ms)
        {
            // Failure: there was a report already, and with it an own one.
            let _ = self.observations.set(Arc::clone(theirs));
        }
    }

    fn observations(&self) -> &Arc<Observations> {
        self.observations.get_or_init(|| self.new_observations())
    }

    #[cold]
    fn new_observations(&self) -> Arc<Observations> {
        let bounds_ms = &self.first_response_bounds_ms;
        Arc::new(Observations::new(self.options, self.cells.len(), bounds_ms))
    }

    /// An instance runs on this device: its figures are shown, also while they are 0.
    pub fn open_device(&self, device_id: i32) {
        self.cells_of(device_id);
    }

    /// Counts one request that executed, on that device if it is a GPU. `batch_size` is the number
    /// of inferences in it, at least 1.
    pub fn report_request(
        &self,
        device_id: Option<i32>,
        success: bool,
        timestamps: &Timestamps,
        batch_size: u64,
        span: &ExecutionSpan,
    ) {
        let now_ns = monotonic_ns();
        let request_ns = now_ns.saturating_sub(timestamps.request_start_ns);
        let cell = self.cell_on(device_id);
        if !success {
            return cell.add_failure(FailureReason::Backend, request_ns);
        }
        let queue_ns = span.exec_start_ns.saturating_sub(timestamps.queue_start_ns);
        cell.update(|fields| {
            fields.add(CellField::Success, 1);
            fields.add(CellField::SuccessNs, request_ns);
            fields.add(CellField::QueueNs, queue_ns);
            fields.add(CellField::InputNs, span.input_ns());
            fields.add(CellField::InferNs, span.infer_ns());
            fields.add(CellField::OutputNs, span.output_ns());
            fields.add(CellField::Inferences, batch_size.max(1));
        });
        let success = Success {
            now_ns,
            total_ns: request_ns,
            queue_ns,
        };
        self.observations()
            .note_execution(writer(), device_id, &success, span);
    }

    /// Counts one request that failed after it was queued, and that no instance reported.
    pub fn report_failure(&self, reason: FailureReason, duration_ns: u64) {
        self.cell().add_failure(reason, duration_ns);
    }

    /// Counts one request answered from the response cache: it is neither an inference nor an
    /// execution.
    pub fn report_cache_hit(&self, timestamps: &Timestamps, lookup_start_ns: u64, lookup_ns: u64) {
        let now_ns = monotonic_ns();
        let success = Success {
            now_ns,
            total_ns: now_ns.saturating_sub(timestamps.request_start_ns),
            queue_ns: lookup_start_ns.saturating_sub(timestamps.queue_start_ns),
        };
        self.cell().update(|fields| {
            fields.add(CellField::Success, 1);
            fields.add(CellField::SuccessNs, success.total_ns);
            fields.add(CellField::QueueNs, success.queue_ns);
            fields.add(CellField::CacheHit, 1);
            fields.add(CellField::CacheHitNs, lookup_ns);
        });
        self.observations()
            .note_cache_hit(writer(), &success, lookup_ns);
    }

    /// Counts the lookup and insertion time of a request that executed because the cache had no
    /// answer.
    pub fn report_cache_miss(&self, overhead_ns: u64) {
        self.cell().update(|fields| {
            fields.add(CellField::SuccessNs, overhead_ns);
            fields.add(CellField::CacheMiss, 1);
            fields.add(CellField::CacheMissNs, overhead_ns);
        });
        if self.options.summaries {
            self.observations()
                .note_cache_miss(overhead_ns, monotonic_ns());
        }
    }

    /// For a request that began then: what [`Statistics::report_first_response`] is called by.
    pub(crate) fn first_response(&self, start_ns: u64) -> FirstResponse {
        match self.options.first_responses {
            true => FirstResponse::new(start_ns),
            false => FirstResponse::default(),
        }
    }

    /// Counts the time from a request to the first response that was sent to it.
    pub(crate) fn report_first_response(&self, duration_ns: u64) {
        self.observations().note_first_response(duration_ns);
    }

    /// Counts one request that was not let in, or left the queue unexecuted.
    pub fn report_refusal(&self, reason: RefusalReason) {
        if let Some(count) = self.refused.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one execution of `batch_size` inferences, on that device if it is a GPU.
    pub fn report_batch(&self, device_id: Option<i32>, batch_size: u64, span: &ExecutionSpan) {
        let now_ms = epoch_ms();
        let cell = self.cell_on(device_id);
        let index = usize::try_from(batch_size)
            .ok()
            .and_then(|size| size.checked_sub(1));
        match index.and_then(|index| cell.batches.get(index)) {
            Some(row) => cell.update(|fields| {
                fields.add_execution(now_ms);
                add(&row[0], 1);
                add(&row[1], span.input_ns());
                add(&row[2], span.infer_ns());
                add(&row[3], span.output_ns());
            }),
            None => {
                // Held over the cell's update too: a reader takes it first and so sees both or
                // neither.
                let mut large = lock(&self.large_batches);
                let entry = large.entry(batch_size).or_default();
                entry.batch_size = batch_size;
                entry.compute_input.add(span.input_ns());
                entry.compute_infer.add(span.infer_ns());
                entry.compute_output.add(span.output_ns());
                cell.update(|fields| fields.add_execution(now_ms));
            }
        }
    }

    /// Counts the `index`-th response of a request; all from [`INDEX_MAX`] on together.
    ///
    /// # Errors
    /// Which stage comes before its predecessor; nothing is counted then.
    pub fn report_response(&self, index: u64, report: ResponseReport) -> Result<(), &'static str> {
        let before = |earlier: u64, later: u64, message: &'static str| {
            later.checked_sub(earlier).ok_or(message)
        };
        let mut delta = ResponseStatistics::default();
        match report {
            ResponseReport::Sent {
                success,
                start_ns,
                output_start_ns,
                end_ns,
            } => {
                if success || output_start_ns > 0 {
                    let infer_ns = before(
                        start_ns,
                        output_start_ns,
                        "Response start cannot happen after compute output start",
                    )?;
                    let output_ns = before(
                        output_start_ns,
                        end_ns,
                        "Compute output start cannot happen after response end",
                    )?;
                    delta.compute_infer.add(infer_ns);
                    // Upstream leaves an output stage of no length out of the failed ones.
                    if success || output_ns > 0 {
                        delta.compute_output.add(output_ns);
                    }
                } else {
                    delta.compute_infer.add(before(
                        start_ns,
                        end_ns,
                        "Response start cannot happen after response end",
                    )?);
                }
                let outcome = if success {
                    &mut delta.success
                } else {
                    &mut delta.fail
                };
                outcome.add(end_ns - start_ns);
            }
            ResponseReport::Empty { start_ns, end_ns } => {
                let infer_ns = before(
                    start_ns,
                    end_ns,
                    "Response start cannot happen after response end",
                )?;
                delta.compute_infer.add(infer_ns);
                delta.empty_response.add(infer_ns);
            }
            ResponseReport::Cancelled { start_ns, end_ns } => {
                delta.cancel.add(before(
                    start_ns,
                    end_ns,
                    "Response start cannot happen after response end",
                )?);
            }
        }
        lock(&self.responses)
            .entry(index.min(INDEX_MAX))
            .or_default()
            .merge(&delta);
        Ok(())
    }

    /// Replaces what `owner` reported before about memory of this kind and id.
    pub fn report_memory(&self, owner: MemoryOwner, usage: MemoryUsage) {
        lock(&self.memory_usage).insert((owner, usage.kind as u8, usage.id), usage.bytes);
    }

    /// `owner` is gone, and with it what it reported.
    pub fn forget_memory(&self, owner: MemoryOwner) {
        lock(&self.memory_usage).retain(|(known, _, _), _| *known != owner);
    }

    /// A request entered the queue.
    pub fn add_pending(&self) {
        add(&self.cell().pending_added, 1);
    }

    /// A request left the queue: to execute, refused, or cancelled.
    pub fn remove_pending(&self, count: u64) {
        add(&self.cell().pending_removed, count);
    }

    /// All numbers at one moment. Waits for writers in the middle of an update, which take tens of
    /// ns.
    pub fn totals(&self) -> Totals {
        let large = lock(&self.large_batches);
        let mut totals = Totals {
            batches: large.clone(),
            ..Totals::default()
        };
        for cell in &self.cells {
            cell.read().add_to(&mut totals);
        }
        for (device_id, cells) in self.devices() {
            let mut figures = Totals::default();
            for cell in cells {
                let image = cell.read();
                image.add_to(&mut totals);
                image.add_to(&mut figures);
            }
            totals.devices.insert(device_id, DeviceTotals::of(&figures));
        }
        drop(large);
        let (removed, added) = self
            .cells
            .iter()
            .fold((0_u64, 0_u64), |(removed, added), cell| {
                // What was removed first: a request that comes and goes meanwhile cannot make the
                // difference negative.
                let gone = cell.pending_removed.load(Ordering::Acquire);
                (removed.wrapping_add(gone), added)
            });
        let added = self.cells.iter().fold(added, |added, cell| {
            added.wrapping_add(cell.pending_added.load(Ordering::Acquire))
        });
        totals.pending_count = added.wrapping_sub(removed);
        totals.refused = RefusalReason::ALL.map(|reason| {
            let count = self.refused.get(reason as usize);
            count.map_or(0, |count| count.load(Ordering::Relaxed))
        });
        totals.responses = lock(&self.responses).clone();
        let mut usage: BTreeMap<(u8, i64), u64> = BTreeMap::new();
        for ((_, kind, id), bytes) in lock(&self.memory_usage).iter() {
            *usage.entry((*kind, *id)).or_default() += bytes;
        }
        totals.memory_usage = usage
            .into_iter()
            .map(|((kind, id), bytes)| MemoryUsage {
                kind: kind_of(kind),
                id,
                bytes,
            })
            .collect();
        totals
    }

    /// The histograms of queue, compute and total time; none before the first request, or where
    /// they are switched off.
    pub fn durations(&self) -> Option<StageCounts> {
        self.observations.get()?.durations()
    }

    /// The summary of a stage; none where they are switched off. `device_id` is that of instances
    /// on a GPU.
    pub fn summary(&self, stage: SummaryStage, device_id: Option<i32>) -> Option<DurationSummary> {
        let is_wanted = self.options.summaries;
        is_wanted.then(|| {
            self.observations()
                .summary(stage, device_id, monotonic_ns())
        })
    }

    /// The histogram of first responses; none where it is switched off.
    pub fn first_responses(&self) -> Option<FirstResponseCounts> {
        match self.options.first_responses {
            true => self.observations().first_responses(),
            false => None,
        }
    }

    /// The devices with an instance, and their cells.
    fn devices(&self) -> impl Iterator<Item = (i32, &[StatsCell])> {
        let devices = self.device_cells.get().map_or(&[][..], |devices| devices);
        (0..)
            .zip(devices)
            .filter_map(|(device_id, cells)| Some((device_id, &**cells.get()?)))
    }

    /// None for a device beyond [`DEVICES_MAX`].
    fn cells_of(&self, device_id: i32) -> Option<&[StatsCell]> {
        let index = usize::try_from(device_id).ok()?;
        let devices = self
            .device_cells
            .get_or_init(|| (0..DEVICES_MAX).map(|_| OnceLock::new()).collect());
        let made = || new_cells(self.cells.len(), self.size_count);
        Some(devices.get(index)?.get_or_init(made))
    }

    fn cell_on(&self, device_id: Option<i32>) -> &StatsCell {
        match device_id.and_then(|device_id| self.cells_of(device_id)) {
            Some(cells) => own_cell(cells),
            None => self.cell(),
        }
    }

    fn cell(&self) -> &StatsCell {
        own_cell(&self.cells)
    }
}

fn new_cells(cell_count: usize, size_count: usize) -> Box<[StatsCell]> {
    (0..cell_count)
        .map(|_| StatsCell::new(size_count))
        .collect()
}

/// The one that this thread writes, of at least one.
fn own_cell(cells: &[StatsCell]) -> &StatsCell {
    &cells[writer() % cells.len()]
}

/// The number of this thread among those that write.
fn writer() -> usize {
    CELL_INDEX.with(|index| match index.get() {
        usize::MAX => {
            let next = NEXT_CELL_INDEX.fetch_add(1, Ordering::Relaxed);
            index.set(next);
            next
        }
        index => index,
    })
}

impl std::fmt::Debug for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statistics")
            .field("totals", &self.totals())
            .finish()
    }
}

/// The next thread's index.
static NEXT_CELL_INDEX: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Which cell this thread writes, modulo their number: a lock-free way to "one per core"
    /// without passing a core through the C ABI.
    static CELL_INDEX: ThreadCell<usize> = const { ThreadCell::new(usize::MAX) };
}

fn add(sum: &AtomicU64, amount: u64) {
    // Release: `totals` orders removals against additions.
    sum.fetch_add(amount, Ordering::Release);
}

fn kind_of(number: u8) -> MemoryKind {
    match number {
        1 => MemoryKind::CpuPinned,
        2 => MemoryKind::Gpu,
        _ => MemoryKind::Cpu,
    }
}

/// A panic while a counter was held leaves counters, nothing worse.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
