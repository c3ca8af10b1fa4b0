//! One thread's share of the counters, and the sequence lock that keeps a reader from seeing half
//! an update.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::model::stats::figures::{CountAndTime, FailureReason, Totals};

/// The sums of one cell, by index.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum CellField {
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

const FIELD_COUNT: usize = CellField::CacheMissNs as usize + 1;
/// Batch sizes with a row of their own in every cell: 32 bytes each, so a cell stays below 9 KiB.
pub(super) const BATCH_SIZES_MAX: usize = 256;
/// Cells of one version; more cores than this share.
pub(super) const CELLS_MAX: usize = 64;
/// Reads of a busy sequence word before the thread gives way; an update takes tens of ns, unless
/// its writer lost the CPU.
const SPINS_MAX: u32 = 64;

/// One thread's share. Aligned so that two cells never share a (paired) cache line.
#[repr(align(128))]
pub(super) struct StatsCell {
    /// Odd while a writer is inside.
    sequence: AtomicU64,
    fields: [AtomicU64; FIELD_COUNT],
    /// Row `i`: count, input, infer and output ns of batches of `i + 1`.
    pub(super) batches: Box<[[AtomicU64; 4]]>,
    pub(super) pending_added: AtomicU64,
    pub(super) pending_removed: AtomicU64,
}

/// Access to a cell's fields during an update.
pub(super) struct CellFields<'a>(&'a [AtomicU64; FIELD_COUNT]);

/// A consistent copy of a cell.
pub(super) struct CellSnapshot {
    fields: [u64; FIELD_COUNT],
    batches: Vec<[u64; 4]>,
}

impl CellFields<'_> {
    pub(super) fn add(&self, field: CellField, amount: u64) {
        let sum = &self.0[field as usize];
        sum.store(
            sum.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }

    pub(super) fn add_execution(&self, now_ms: u64) {
        self.add(CellField::Executions, 1);
        let last = &self.0[CellField::LastInferenceMs as usize];
        last.store(now_ms.max(last.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

impl StatsCell {
    pub(super) fn new(size_count: usize) -> StatsCell {
        StatsCell {
            sequence: AtomicU64::new(0),
            fields: std::array::from_fn(|_| AtomicU64::new(0)),
            batches: (0..size_count)
                .map(|_| std::array::from_fn(|_| AtomicU64::new(0)))
                .collect(),
            pending_added: AtomicU64::new(0),
            pending_removed: AtomicU64::new(0),
        }
    }

    pub(super) fn update(&self, write: impl FnOnce(&CellFields<'_>)) {
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
        write(&CellFields(&self.fields));
        self.sequence
            .store(sequence.wrapping_add(2), Ordering::Release);
    }

    pub(super) fn add_failure(&self, reason: FailureReason, duration_ns: u64) {
        let field = match reason {
            FailureReason::Rejected => CellField::Rejected,
            FailureReason::Canceled => CellField::Canceled,
            FailureReason::Backend => CellField::Backend,
            FailureReason::Other => CellField::Other,
        };
        self.update(|fields| {
            fields.add(field, 1);
            fields.add(CellField::FailNs, duration_ns);
        });
    }

    pub(super) fn read(&self) -> CellSnapshot {
        let mut spins = 0;
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let image = CellSnapshot {
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

impl CellSnapshot {
    pub(super) fn add_to(&self, totals: &mut Totals) {
        let field = |field: CellField| self.fields[field as usize];
        let grow = |tally: &mut CountAndTime, count: u64, duration_ns: u64| {
            tally.count += count;
            tally.duration_ns = tally.duration_ns.wrapping_add(duration_ns);
        };
        let hits = field(CellField::CacheHit);
        let success = field(CellField::Success);
        let inference = &mut totals.inference;
        grow(&mut inference.success, success, field(CellField::SuccessNs));
        grow(&mut inference.queue, success, field(CellField::QueueNs));
        grow(
            &mut inference.compute_input,
            success - hits,
            field(CellField::InputNs),
        );
        grow(
            &mut inference.compute_infer,
            success - hits,
            field(CellField::InferNs),
        );
        grow(
            &mut inference.compute_output,
            success - hits,
            field(CellField::OutputNs),
        );
        grow(&mut inference.cache_hit, hits, field(CellField::CacheHitNs));
        grow(
            &mut inference.cache_miss,
            field(CellField::CacheMiss),
            field(CellField::CacheMissNs),
        );
        let reasons = [
            CellField::Rejected,
            CellField::Canceled,
            CellField::Backend,
            CellField::Other,
        ]
        .map(field);
        for (total, count) in totals.failures.iter_mut().zip(reasons) {
            *total += count;
        }
        grow(
            &mut inference.fail,
            reasons.iter().sum(),
            field(CellField::FailNs),
        );
        totals.inference_count += field(CellField::Inferences);
        totals.execution_count += field(CellField::Executions);
        totals.last_inference_ms = totals
            .last_inference_ms
            .max(field(CellField::LastInferenceMs));
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

fn pause(spins: &mut u32) {
    if *spins < SPINS_MAX {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
