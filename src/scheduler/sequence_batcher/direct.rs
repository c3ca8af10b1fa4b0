//! The direct strategy: slot and row of the batch are the same.

use conch_sync::{ClaimReason, NEVER_NS};

use super::member::SlotId;
use super::slot::SequenceSlot;
use super::table::{ActiveSequence, SequenceTable};
use crate::entry::{Entry, Signature};
use crate::output::SchedulerOutput;

#[derive(Clone, Copy, Debug)]
pub(super) struct DirectStrategy {
    delay_ns: u64,
    /// Ready slots at which a batch does not wait.
    ready_min: f64,
    is_iterative: bool,
}

/// The slots of an instance that have a request to execute.
pub(super) struct ReadyRows {
    count: u32,
    /// One more than the highest of them.
    end: usize,
    oldest_ns: u64,
    /// Of the request in the lowest of them.
    template: Signature,
}

impl DirectStrategy {
    pub(super) fn new(
        delay_us: u64,
        utilization_min: f32,
        batch_size_max: u32,
        is_iterative: bool,
    ) -> DirectStrategy {
        // Without either of them a batch never waits.
        let waits = delay_us != 0 && utilization_min != 0.0;
        DirectStrategy {
            delay_ns: if waits {
                delay_us.saturating_mul(1_000)
            } else {
                0
            },
            ready_min: f64::from(utilization_min) * f64::from(batch_size_max.max(1)),
            is_iterative,
        }
    }

    /// The sequence in `slot`, if its next request may be executed.
    fn holder<T: Entry>(&self, slot: &SequenceSlot<T>) -> Option<u64> {
        slot.holder()
            .filter(|_| !slot.is_held_back(self.is_iterative))
    }

    /// None if no slot has a request to execute.
    pub(super) fn ready_rows<T: Entry>(
        &self,
        slots: &[SequenceSlot<T>],
        table: &SequenceTable<T>,
    ) -> Option<ReadyRows> {
        let mut ready: Option<ReadyRows> = None;
        for (row, slot) in slots.iter().enumerate() {
            let run = self.holder(slot).and_then(|id| table.get(id));
            let Some((entry, since_ns)) = run.and_then(|run| run.queue.front()) else {
                continue;
            };
            let ready = ready.get_or_insert_with(|| ReadyRows {
                count: 0,
                end: 0,
                oldest_ns: NEVER_NS,
                template: entry.facts().signature.clone(),
            });
            ready.oldest_ns = ready.oldest_ns.min(*since_ns);
            ready.count += 1;
            ready.end = row + 1;
        }
        ready
    }

    /// Whether a slot has a request to execute.
    pub(super) fn has_ready<T: Entry>(
        &self,
        slots: &[SequenceSlot<T>],
        table: &SequenceTable<T>,
    ) -> bool {
        slots.iter().any(|slot| {
            let run = self.holder(slot).and_then(|id| table.get(id));
            run.is_some_and(|run| !run.queue.is_empty())
        })
    }

    /// Until when a batch of these waits for others; none if it does not wait.
    pub(super) fn wait_until(&self, ready: &ReadyRows, now_ns: u64) -> Option<u64> {
        let delay_end_ns = ready.oldest_ns.saturating_add(self.delay_ns);
        let waits =
            self.delay_ns != 0 && now_ns < delay_end_ns && f64::from(ready.count) < self.ready_min;
        waits.then_some(delay_end_ns)
    }

    /// Forms a batch of the requests that the slots of `instance` have ready. Rows without a
    /// request, or with one that does not fit the first, stay empty; the batch reaches up to the
    /// highest slot with a request, as upstream's.
    pub(super) fn form<T: Entry>(
        &self,
        instance: usize,
        slots: &mut [SequenceSlot<T>],
        table: &mut SequenceTable<T>,
        ready: &ReadyRows,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) {
        output.row_count = ready.end;
        for (row, slot) in slots.iter_mut().enumerate().take(ready.end) {
            let run = self.holder(slot).and_then(|id| table.get_mut(id));
            let Some((run, entry)) = run.and_then(|run| pop_fitting(run, &ready.template)) else {
                continue;
            };
            run.active_ns = now_ns;
            slot.give_out();
            if let Some(member) = entry.member() {
                member.enter(SlotId::new(instance, row));
                member.give_out();
            }
            let owned = entry.claim(ClaimReason::Execute);
            output
                .batch
                .push(owned.expect("nobody else claims a request of a sequence"));
            output.rows.push(row);
        }
    }
}

/// The next request of a sequence, if it fits the others of a batch.
fn pop_fitting<'t, T: Entry>(
    run: &'t mut ActiveSequence<T>,
    template: &Signature,
) -> Option<(&'t mut ActiveSequence<T>, T)> {
    let fits = |(entry, _): &mut (T, u64)| entry.facts().signature == *template;
    let (entry, _) = run.queue.pop_front_if(fits)?;
    Some((run, entry))
}
