//! What a model version counts: requests, inferences, executions, durations, batches, responses.
//!
//! Numbers live in cells, one per core: each thread writes its own, under a sequence lock, so writers share no cache line and a
//! reader never sees half an update. A thread beyond the number of cells shares one; then the sequence word also keeps writers apart.
//! Everything is counted before the reply is visible to the client; that is the duty of the callers, which are the core threads and
//! backends' own threads. Readers (statistics, metrics) run on whatever thread asks.

use std::cell::Cell as ThreadCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_memory::Kind;

use crate::Stamps;
use crate::clock::{epoch_ms, monotonic_ns};

/// Why a request failed; the `reason` label of `nv_inference_request_failure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its queue policy refused it after it was queued.
    Rejected,
    /// Cancelled before it executed.
    Canceled,
    /// The backend failed it.
    Backend,
    Other,
}

impl Failure {
    pub const ALL: [Failure; 4] = [
        Failure::Rejected,
        Failure::Canceled,
        Failure::Backend,
        Failure::Other,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Failure::Rejected => "REJECTED",
            Failure::Canceled => "CANCELED",
            Failure::Backend => "BACKEND",
            Failure::Other => "OTHER",
        }
    }
}

/// When one execution reached its stages, monotonic ns, as the backend reports it. Later stages may not precede earlier ones; where
/// they do (a backend that leaves a stage 0), the stage counts as 0 ns long.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecutionSpan {
    pub exec_start_ns: u64,
    pub compute_start_ns: u64,
    pub compute_end_ns: u64,
    pub exec_end_ns: u64,
}

/// How often, and for how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub count: u64,
    pub duration_ns: u64,
}

impl Tally {
    fn add(&mut self, duration_ns: u64) {
        self.count += 1;
        self.duration_ns = self.duration_ns.wrapping_add(duration_ns);
    }
}

/// `inference_stats` of the statistics extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InferenceStatistics {
    pub success: Tally,
    pub fail: Tally,
    pub queue: Tally,
    pub compute_input: Tally,
    pub compute_infer: Tally,
    pub compute_output: Tally,
    pub cache_hit: Tally,
    pub cache_miss: Tally,
}

/// One entry of `response_stats`: what became of the n-th responses of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseStatistics {
    pub compute_infer: Tally,
    pub compute_output: Tally,
    pub success: Tally,
    pub fail: Tally,
    pub empty_response: Tally,
    pub cancel: Tally,
}

/// One entry of `batch_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    pub batch_size: u64,
    pub compute_input: Tally,
    pub compute_infer: Tally,
    pub compute_output: Tally,
}

/// One entry of `memory_usage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    pub kind: Kind,
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
    /// Indexed as [`Failure::ALL`].
    pub failures: [u64; 4],
    pub responses: BTreeMap<u64, ResponseStatistics>,
    pub batches: BTreeMap<u64, BatchStatistics>,
    pub memory_usage: Vec<MemoryUsage>,
    /// Requests queued now.
    pub pending_count: u64,
}

/// What happened to one response, for [`Statistics::report_response`]. Times are monotonic ns.
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

/// The counters of one model version.
pub struct Statistics {
    cells: Box<[Cell]>,
    /// Batches larger than the cells' tables hold. Behind a lock because such sizes are rare.
    large_batches: Mutex<BTreeMap<u64, BatchStatistics>>,
    /// Behind a lock because only decoupled models report them, and each response costs far more than the lock.
    responses: Mutex<BTreeMap<u64, ResponseStatistics>>,
    memory_usage: Mutex<BTreeMap<(MemoryOwner, u8, i64), u64>>,
}

/// Who reported memory: the model (0) or one of its instances (1 and up).
pub type MemoryOwner = u64;

impl Statistics {
    /// Counters for a version with `core_count` cores and batches of up to `batch_size_max`.
    pub fn new(core_count: usize, batch_size_max: u32) -> Statistics {
        let cell_count = core_count.clamp(1, CELLS_MAX);
        let size_count = usize::try_from(batch_size_max)
            .unwrap_or(usize::MAX)
            .clamp(1, BATCH_SIZES_MAX);
        Statistics {
            cells: (0..cell_count).map(|_| Cell::new(size_count)).collect(),
            large_batches: Mutex::default(),
            responses: Mutex::default(),
            memory_usage: Mutex::default(),
        }
    }

    /// Counts one request that executed. `batch_size` is the number of inferences in it, at least 1.
    pub fn report_request(
        &self,
        success: bool,
        stamps: &Stamps,
        batch_size: u64,
        span: &ExecutionSpan,
    ) {
        let request_ns = monotonic_ns().saturating_sub(stamps.request_start_ns);
        if !success {
            return self.report_failure(Failure::Backend, request_ns);
        }
        self.cell().update(|fields| {
            fields.add(Field::Success, 1);
            fields.add(Field::SuccessNs, request_ns);
            fields.add(
                Field::QueueNs,
                span.exec_start_ns.saturating_sub(stamps.queue_start_ns),
            );
            fields.add(Field::InputNs, span.input_ns());
            fields.add(Field::InferNs, span.infer_ns());
            fields.add(Field::OutputNs, span.output_ns());
            fields.add(Field::Inferences, batch_size.max(1));
        });
    }

    /// Counts one request that failed after it was queued.
    pub fn report_failure(&self, reason: Failure, duration_ns: u64) {
        let field = match reason {
            Failure::Rejected => Field::Rejected,
            Failure::Canceled => Field::Canceled,
            Failure::Backend => Field::Backend,
            Failure::Other => Field::Other,
        };
        self.cell().update(|fields| {
            fields.add(field, 1);
            fields.add(Field::FailNs, duration_ns);
        });
    }

    /// Counts one request answered from the response cache: it is neither an inference nor an execution.
    pub fn report_cache_hit(&self, stamps: &Stamps, lookup_start_ns: u64, lookup_ns: u64) {
        let request_ns = monotonic_ns().saturating_sub(stamps.request_start_ns);
        self.cell().update(|fields| {
            fields.add(Field::Success, 1);
            fields.add(Field::SuccessNs, request_ns);
            fields.add(
                Field::QueueNs,
                lookup_start_ns.saturating_sub(stamps.queue_start_ns),
            );
            fields.add(Field::CacheHit, 1);
            fields.add(Field::CacheHitNs, lookup_ns);
        });
    }

    /// Counts the lookup and insertion time of a request that executed because the cache had no answer.
    pub fn report_cache_miss(&self, overhead_ns: u64) {
        self.cell().update(|fields| {
            fields.add(Field::SuccessNs, overhead_ns);
            fields.add(Field::CacheMiss, 1);
            fields.add(Field::CacheMissNs, overhead_ns);
        });
    }

    /// Counts one execution of `batch_size` inferences.
    pub fn report_batch(&self, batch_size: u64, span: &ExecutionSpan) {
        let now_ms = epoch_ms();
        let cell = self.cell();
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
                // Held over the cell's update too: a reader takes it first and so sees both or neither.
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

    /// Counts the `index`-th response of a request.
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
            .entry(index)
            .or_default()
            .merge(&delta);
        Ok(())
    }

    /// Replaces what `owner` reported before about memory of this kind and id.
    pub fn report_memory(&self, owner: MemoryOwner, usage: MemoryUsage) {
        lock(&self.memory_usage).insert((owner, usage.kind as u8, usage.id), usage.bytes);
    }

    /// A request entered the queue.
    pub fn add_pending(&self) {
        add(&self.cell().pending_added, 1);
    }

    /// A request left the queue: to execute, refused, or cancelled.
    pub fn remove_pending(&self, count: u64) {
        add(&self.cell().pending_removed, count);
    }

    /// All numbers at one moment. Waits for writers in the middle of an update, which take tens of ns.
    pub fn totals(&self) -> Totals {
        let large = lock(&self.large_batches);
        let mut totals = Totals {
            batches: large.clone(),
            ..Totals::default()
        };
        for cell in &self.cells {
            cell.read().add_to(&mut totals);
        }
        drop(large);
        let (removed, added) = self
            .cells
            .iter()
            .fold((0_u64, 0_u64), |(removed, added), cell| {
                // What was removed first: a request that comes and goes meanwhile cannot make the difference negative.
                let gone = cell.pending_removed.load(Ordering::Acquire);
                (removed.wrapping_add(gone), added)
            });
        let added = self.cells.iter().fold(added, |added, cell| {
            added.wrapping_add(cell.pending_added.load(Ordering::Acquire))
        });
        totals.pending_count = added.wrapping_sub(removed);
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

    fn cell(&self) -> &Cell {
        let lane = LANE.with(|lane| match lane.get() {
            usize::MAX => {
                let next = NEXT_LANE.fetch_add(1, Ordering::Relaxed);
                lane.set(next);
                next
            }
            lane => lane,
        });
        &self.cells[lane % self.cells.len()]
    }
}

impl std::fmt::Debug for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statistics")
            .field("totals", &self.totals())
            .finish()
    }
}

impl ResponseStatistics {
    fn merge(&mut self, other: &ResponseStatistics) {
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

impl ExecutionSpan {
    fn input_ns(&self) -> u64 {
        self.compute_start_ns.saturating_sub(self.exec_start_ns)
    }

    fn infer_ns(&self) -> u64 {
        self.compute_end_ns.saturating_sub(self.compute_start_ns)
    }

    fn output_ns(&self) -> u64 {
        self.exec_end_ns.saturating_sub(self.compute_end_ns)
    }
}

/// The sums of one cell, by index.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Field {
    Success,
    SuccessNs,
    QueueNs,
    InputNs,
    InferNs,
    OutputNs,
    FailNs,
    Rejected,
    Canceled,
    Backend,
    Other,
    Inferences,
    Executions,
    LastInferenceMs,
    CacheHit,
    CacheHitNs,
    CacheMiss,
    CacheMissNs,
}

const FIELD_COUNT: usize = Field::CacheMissNs as usize + 1;
/// Batch sizes with a row of their own in every cell: 32 bytes each, so a cell stays below 9 KiB.
const BATCH_SIZES_MAX: usize = 256;
/// Cells of one version; more cores than this share.
const CELLS_MAX: usize = 64;
/// Reads of a busy sequence word before the thread gives way; an update takes tens of ns, unless its writer lost the CPU.
const SPINS_MAX: u32 = 64;

/// The next thread's lane.
static NEXT_LANE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Which cell this thread writes, modulo their number: a lock-free way to "one per core" without passing a core through the C ABI.
    static LANE: ThreadCell<usize> = const { ThreadCell::new(usize::MAX) };
}

/// One thread's share. Aligned so that two cells never share a (paired) cache line.
#[repr(align(128))]
struct Cell {
    /// Odd while a writer is inside.
    sequence: AtomicU64,
    fields: [AtomicU64; FIELD_COUNT],
    /// Row `i`: count, input, infer and output ns of batches of `i + 1`.
    batches: Box<[[AtomicU64; 4]]>,
    pending_added: AtomicU64,
    pending_removed: AtomicU64,
}

/// Access to a cell's fields during an update.
struct Fields<'a>(&'a [AtomicU64; FIELD_COUNT]);

/// A consistent copy of a cell.
struct Image {
    fields: [u64; FIELD_COUNT],
    batches: Vec<[u64; 4]>,
}

impl Fields<'_> {
    fn add(&self, field: Field, amount: u64) {
        let sum = &self.0[field as usize];
        sum.store(
            sum.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }

    fn add_execution(&self, now_ms: u64) {
        self.add(Field::Executions, 1);
        let last = &self.0[Field::LastInferenceMs as usize];
        last.store(now_ms.max(last.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

impl Cell {
    fn new(size_count: usize) -> Cell {
        Cell {
            sequence: AtomicU64::new(0),
            fields: std::array::from_fn(|_| AtomicU64::new(0)),
            batches: (0..size_count)
                .map(|_| std::array::from_fn(|_| AtomicU64::new(0)))
                .collect(),
            pending_added: AtomicU64::new(0),
            pending_removed: AtomicU64::new(0),
        }
    }

    fn update(&self, write: impl FnOnce(&Fields<'_>)) {
        let mut spins = 0;
        let sequence = loop {
            let seen = self.sequence.load(Ordering::Relaxed);
            // Acquire pairs with the Release at the end of the previous writer's update.
            if seen & 1 == 0
                && self
                    .sequence
                    .compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                break seen;
            }
            pause(&mut spins);
        };
        // The odd sequence becomes visible no later than any of the stores below.
        fence(Ordering::Release);
        write(&Fields(&self.fields));
        self.sequence
            .store(sequence.wrapping_add(2), Ordering::Release);
    }

    fn read(&self) -> Image {
        let mut spins = 0;
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let image = Image {
                    fields: std::array::from_fn(|index| self.fields[index].load(Ordering::Relaxed)),
                    batches: self
                        .batches
                        .iter()
                        .map(|row| std::array::from_fn(|index| row[index].load(Ordering::Relaxed)))
                        .collect(),
                };
                // The loads above happen before the second look: it pairs with the writer's fence.
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return image;
                }
            }
            pause(&mut spins);
        }
    }
}

impl Image {
    fn add_to(&self, totals: &mut Totals) {
        let field = |field: Field| self.fields[field as usize];
        let grow = |tally: &mut Tally, count: u64, duration_ns: u64| {
            tally.count += count;
            tally.duration_ns = tally.duration_ns.wrapping_add(duration_ns);
        };
        let hits = field(Field::CacheHit);
        let success = field(Field::Success);
        let inference = &mut totals.inference;
        grow(&mut inference.success, success, field(Field::SuccessNs));
        grow(&mut inference.queue, success, field(Field::QueueNs));
        grow(
            &mut inference.compute_input,
            success - hits,
            field(Field::InputNs),
        );
        grow(
            &mut inference.compute_infer,
            success - hits,
            field(Field::InferNs),
        );
        grow(
            &mut inference.compute_output,
            success - hits,
            field(Field::OutputNs),
        );
        grow(&mut inference.cache_hit, hits, field(Field::CacheHitNs));
        grow(
            &mut inference.cache_miss,
            field(Field::CacheMiss),
            field(Field::CacheMissNs),
        );
        let reasons = [
            Field::Rejected,
            Field::Canceled,
            Field::Backend,
            Field::Other,
        ]
        .map(field);
        for (total, count) in totals.failures.iter_mut().zip(reasons) {
            *total += count;
        }
        grow(
            &mut inference.fail,
            reasons.iter().sum(),
            field(Field::FailNs),
        );
        totals.inference_count += field(Field::Inferences);
        totals.execution_count += field(Field::Executions);
        totals.last_inference_ms = totals.last_inference_ms.max(field(Field::LastInferenceMs));
        for (batch_size, row) in (1..).zip(&self.batches) {
            let [count, input_ns, infer_ns, output_ns] = *row;
            if count > 0 {
                let entry = totals.batches.entry(batch_size).or_default();
                entry.batch_size = batch_size;
                grow(&mut entry.compute_input, count, input_ns);
                grow(&mut entry.compute_infer, count, infer_ns);
                grow(&mut entry.compute_output, count, output_ns);
            }
        }
    }
}

fn add(sum: &AtomicU64, amount: u64) {
    // Release: `totals` orders removals against additions.
    sum.fetch_add(amount, Ordering::Release);
}

fn pause(spins: &mut u32) {
    if *spins < SPINS_MAX {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

fn kind_of(number: u8) -> Kind {
    match number {
        1 => Kind::CpuPinned,
        2 => Kind::Gpu,
        _ => Kind::Cpu,
    }
}

/// A panic while a counter was held leaves counters, nothing worse.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const SPAN: ExecutionSpan = ExecutionSpan {
        exec_start_ns: 1_000,
        compute_start_ns: 1_001,
        compute_end_ns: 1_011,
        exec_end_ns: 1_111,
    };

    fn stamps() -> Stamps {
        Stamps {
            request_start_ns: 100,
            queue_start_ns: 900,
            ..Stamps::default()
        }
    }

    #[test]
    fn every_report_reaches_its_fields() {
        let statistics = Statistics::new(1, 4);
        statistics.report_request(true, &stamps(), 3, &SPAN);
        statistics.report_request(false, &stamps(), 1, &SPAN);
        statistics.report_failure(Failure::Rejected, 7);
        statistics.report_failure(Failure::Canceled, 0);
        statistics.report_failure(Failure::Other, 0);
        statistics.report_batch(3, &SPAN);
        statistics.report_batch(3, &SPAN);
        statistics.report_batch(4, &SPAN);
        statistics.report_batch(1_000_000, &SPAN);
        statistics.report_batch(0, &SPAN);
        statistics.report_cache_hit(&stamps(), 950, 25);
        statistics.report_cache_miss(40);
        let totals = statistics.totals();
        assert_eq!((totals.inference_count, totals.execution_count), (3, 5));
        assert!(totals.last_inference_ms > 1_600_000_000_000);
        assert_eq!(totals.failures, [1, 1, 1, 1]);
        let inference = totals.inference;
        assert_eq!(inference.fail.count, 4);
        assert!(inference.fail.duration_ns > 7);
        assert_eq!(inference.success.count, 2);
        assert_eq!(
            inference.queue,
            Tally {
                count: 2,
                duration_ns: 100 + 50
            }
        );
        assert_eq!(
            inference.compute_input,
            Tally {
                count: 1,
                duration_ns: 1
            }
        );
        assert_eq!(
            inference.compute_infer,
            Tally {
                count: 1,
                duration_ns: 10
            }
        );
        assert_eq!(
            inference.compute_output,
            Tally {
                count: 1,
                duration_ns: 100
            }
        );
        assert_eq!(
            inference.cache_hit,
            Tally {
                count: 1,
                duration_ns: 25
            }
        );
        assert_eq!(
            inference.cache_miss,
            Tally {
                count: 1,
                duration_ns: 40
            }
        );
        let sizes: Vec<(u64, u64)> = totals
            .batches
            .values()
            .map(|batch| (batch.batch_size, batch.compute_infer.count))
            .collect();
        assert_eq!(sizes, [(0, 1), (3, 2), (4, 1), (1_000_000, 1)]);
        assert_eq!(
            totals.batches[&3].compute_output,
            Tally {
                count: 2,
                duration_ns: 200
            }
        );
        assert_eq!(
            totals.batches[&1_000_000].compute_input,
            Tally {
                count: 1,
                duration_ns: 1
            }
        );
    }

    #[test]
    fn stages_out_of_order_count_as_nothing() {
        let statistics = Statistics::new(1, 0);
        let span = ExecutionSpan {
            exec_start_ns: 500,
            compute_start_ns: 0,
            compute_end_ns: 800,
            exec_end_ns: 700,
        };
        statistics.report_request(
            true,
            &Stamps {
                queue_start_ns: 600,
                ..stamps()
            },
            0,
            &span,
        );
        let totals = statistics.totals();
        assert_eq!(totals.inference.queue.duration_ns, 0);
        assert_eq!(totals.inference.compute_input.duration_ns, 0);
        assert_eq!(totals.inference.compute_infer.duration_ns, 800);
        assert_eq!(totals.inference.compute_output.duration_ns, 0);
        assert_eq!(
            totals.inference_count, 1,
            "a request is at least one inference"
        );
    }

    #[test]
    fn responses_are_counted_by_index_and_checked() {
        let sent = |success, start_ns, output_start_ns, end_ns| ResponseReport::Sent {
            success,
            start_ns,
            output_start_ns,
            end_ns,
        };
        let table: [(ResponseReport, Result<[u64; 6], &str>); 9] = [
            (sent(true, 10, 15, 18), Ok([1, 1, 1, 0, 0, 0])),
            (
                sent(true, 10, 9, 18),
                Err("Response start cannot happen after compute output start"),
            ),
            (
                sent(true, 10, 19, 18),
                Err("Compute output start cannot happen after response end"),
            ),
            (sent(false, 10, 15, 18), Ok([1, 1, 0, 1, 0, 0])),
            (sent(false, 10, 0, 18), Ok([1, 0, 0, 1, 0, 0])),
            (
                sent(false, 20, 0, 18),
                Err("Response start cannot happen after response end"),
            ),
            (
                ResponseReport::Empty {
                    start_ns: 10,
                    end_ns: 12,
                },
                Ok([1, 0, 0, 0, 1, 0]),
            ),
            (
                ResponseReport::Cancelled {
                    start_ns: 10,
                    end_ns: 12,
                },
                Ok([0, 0, 0, 0, 0, 1]),
            ),
            (
                ResponseReport::Cancelled {
                    start_ns: 13,
                    end_ns: 12,
                },
                Err("Response start cannot happen after response end"),
            ),
        ];
        for (index, (report, expected)) in (0_u64..).zip(table) {
            let statistics = Statistics::new(1, 0);
            assert_eq!(
                statistics.report_response(index, report),
                expected.map(|_| ()),
                "{report:?}"
            );
            let totals = statistics.totals();
            let counts = totals.responses.get(&index).map(|seen| {
                [
                    seen.compute_infer,
                    seen.compute_output,
                    seen.success,
                    seen.fail,
                    seen.empty_response,
                    seen.cancel,
                ]
                .map(|tally| tally.count)
            });
            assert_eq!(counts, expected.ok(), "{report:?}");
        }
        let statistics = Statistics::new(1, 0);
        statistics
            .report_response(0, sent(true, 10, 15, 18))
            .unwrap();
        statistics
            .report_response(0, sent(true, 10, 15, 18))
            .unwrap();
        let seen = statistics.totals().responses[&0];
        assert_eq!(
            seen.compute_infer,
            Tally {
                count: 2,
                duration_ns: 10
            }
        );
        assert_eq!(
            seen.compute_output,
            Tally {
                count: 2,
                duration_ns: 6
            }
        );
        assert_eq!(
            seen.success,
            Tally {
                count: 2,
                duration_ns: 16
            }
        );
    }

    #[test]
    fn memory_is_replaced_per_owner_and_summed() {
        let statistics = Statistics::new(1, 0);
        let usage = |kind, id, bytes| MemoryUsage { kind, id, bytes };
        statistics.report_memory(0, usage(Kind::Cpu, 0, 100));
        statistics.report_memory(0, usage(Kind::Cpu, 0, 70));
        statistics.report_memory(1, usage(Kind::Cpu, 0, 5));
        statistics.report_memory(1, usage(Kind::Gpu, 2, 9));
        assert_eq!(
            statistics.totals().memory_usage,
            [usage(Kind::Cpu, 0, 75), usage(Kind::Gpu, 2, 9)]
        );
    }

    /// Each writer keeps a relation between fields; a torn read would break it.
    #[test]
    fn reads_are_never_torn() {
        const WRITERS: usize = 4;
        const ROUNDS: u64 = 4_000;
        // Fewer cells than writers, so that some share one.
        let statistics = Statistics::new(2, 2);
        assert_eq!(statistics.cells.len(), 2);
        let is_done = AtomicBool::new(false);
        let read_count = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = Totals::default();
                while !is_done.load(Ordering::Acquire) {
                    let totals = statistics.totals();
                    let inference = &totals.inference;
                    assert_eq!(totals.inference_count, 3 * inference.success.count);
                    assert_eq!(inference.queue.duration_ns, 100 * inference.success.count);
                    assert_eq!(
                        inference.compute_output.duration_ns,
                        100 * inference.success.count
                    );
                    assert_eq!(inference.fail.duration_ns, 7 * totals.failures[0]);
                    let executions: u64 = totals
                        .batches
                        .values()
                        .map(|batch| batch.compute_infer.count)
                        .sum();
                    assert_eq!(executions, totals.execution_count);
                    for batch in totals.batches.values() {
                        assert_eq!(
                            batch.compute_infer.duration_ns,
                            10 * batch.compute_infer.count
                        );
                        assert_eq!(
                            batch.compute_output.duration_ns,
                            100 * batch.compute_output.count
                        );
                    }
                    assert!(
                        totals.inference_count >= last.inference_count
                            && totals.execution_count >= last.execution_count
                    );
                    assert!(
                        totals.pending_count <= WRITERS as u64,
                        "{}",
                        totals.pending_count
                    );
                    last = totals;
                    read_count.fetch_add(1, Ordering::Relaxed);
                }
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|_| {
                    scope.spawn(|| {
                        for round in 0..ROUNDS {
                            statistics.add_pending();
                            statistics.report_request(true, &stamps(), 3, &SPAN);
                            statistics.report_failure(Failure::Rejected, 7);
                            // Sizes with a row, and one without.
                            statistics.report_batch(1 + round % 3, &SPAN);
                            statistics.remove_pending(1);
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            while read_count.load(Ordering::Relaxed) == 0 && !reader.is_finished() {
                std::thread::yield_now();
            }
            is_done.store(true, Ordering::Release);
            reader.join().unwrap();
        });
        let totals = statistics.totals();
        let expected = WRITERS as u64 * ROUNDS;
        assert_eq!(
            (totals.inference.success.count, totals.execution_count),
            (expected, expected)
        );
        assert_eq!(
            (totals.failures, totals.pending_count),
            ([expected, 0, 0, 0], 0)
        );
    }
}
