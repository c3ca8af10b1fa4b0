//! The direct strategy: slot and row of the batch are the same.

use conch_sync::{ClaimReason, NEVER_NS};

use super::member::SlotId;
use super::{SequenceBatcher, SequenceContext, SlotStrategy};
use crate::entry::{Entry, Signature};
use crate::output::SchedulerOutput;

#[derive(Clone, Copy, Debug)]
pub(super) struct DirectStrategy {
    delay_ns: u64,
    /// Ready slots at which a batch does not wait.
    ready_min: f64,
}

impl DirectStrategy {
    pub(super) fn new(delay_us: u64, utilization_min: f32, batch_size_max: u32) -> DirectStrategy {
        // Without either of them a batch never waits.
        let waits = delay_us != 0 && utilization_min != 0.0;
        DirectStrategy {
            delay_ns: if waits {
                delay_us.saturating_mul(1_000)
            } else {
                0
            },
            ready_min: f64::from(utilization_min) * f64::from(batch_size_max.max(1)),
        }
    }
}

impl<T: Entry> SequenceBatcher<T> {
    /// Forms a batch of the requests that the slots of `instance` have ready. Rows without a
    /// request, or with one that does not fit the first, stay empty; the batch reaches up to the
    /// highest slot with a request, as upstream's.
    pub(super) fn form_direct(
        &mut self,
        instance: usize,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) {
        let SlotStrategy::Direct(direct) = self.strategy else {
            return;
        };
        let (mut ready_count, mut oldest_ns, mut row_count) = (0_u32, NEVER_NS, 0);
        let mut template: Option<Signature> = None;
        for (row, slot) in self.instances[instance].slots.iter().enumerate() {
            if self.is_held_back(slot) {
                continue;
            }
            let run = slot.run.and_then(|id| self.table.get(id));
            let Some((entry, since_ns)) = run.and_then(|run| run.queue.front()) else {
                continue;
            };
            template.get_or_insert_with(|| entry.facts().signature.clone());
            oldest_ns = oldest_ns.min(*since_ns);
            ready_count += 1;
            row_count = row + 1;
        }
        let Some(template) = template else { return };
        let delay_end_ns = oldest_ns.saturating_add(direct.delay_ns);
        if direct.delay_ns != 0
            && now_ns < delay_end_ns
            && f64::from(ready_count) < direct.ready_min
        {
            self.instances[instance].deadline_ns = delay_end_ns;
            return;
        }
        output.row_count = row_count;
        for row in 0..row_count {
            if self.is_held_back(&self.instances[instance].slots[row]) {
                continue;
            }
            let slot = &mut self.instances[instance].slots[row];
            let run = slot.run.and_then(|id| self.table.get_mut(id));
            let Some(run) = run else { continue };
            let fits = |(entry, _): &(T, u64)| entry.facts().signature == template;
            if !run.queue.front().is_some_and(fits) {
                continue;
            }
            let Some((entry, _)) = run.queue.pop_front() else {
                continue;
            };
            run.active_ns = now_ns;
            let Some(owned) = entry.claim(ClaimReason::Execute) else {
                // Nobody else claims what a sequence has waiting.
                debug_assert!(false, "a request of a sequence was claimed elsewhere");
                self.waiting_count -= 1;
                continue;
            };
            slot.is_out = true;
            let id = SlotId {
                row: row as u32,
                instance: instance as u32,
            };
            if let Some(member) = entry.member() {
                SequenceContext::leave_from(member, id);
            }
            output.batch.push(owned);
            output.rows.push(row);
        }
        for index in 0..output.rows.len() {
            let id = SlotId {
                row: output.rows[index] as u32,
                instance: instance as u32,
            };
            self.settle(id, now_ns);
        }
        // Those that did not fit are for the next step.
        if self.instances[instance].slots.iter().any(|slot| {
            let run = slot.run.and_then(|id| self.table.get(id));
            !self.is_held_back(slot) && run.is_some_and(|run| !run.queue.is_empty())
        }) {
            self.instances[instance].is_called = true;
        }
    }
}
