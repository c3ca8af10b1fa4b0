//! The oldest strategy: each instance batches its sequences' next requests, one of each, as a
//! dynamic batcher would.

use conch_config::DynamicBatching;
use conch_sync::ClaimReason;

use super::member::SlotId;
use super::{SequenceBatcher, SequenceContext, SlotStrategy};
use crate::dynamic::DynamicBatcher;
use crate::entry::{Entry, SchedulingParams};
use crate::output::SchedulerOutput;

#[derive(Debug)]
pub(super) struct OldestStrategy<T: Entry> {
    /// One per instance.
    batchers: Vec<DynamicBatcher<OldestCandidate<T>>>,
    settings: DynamicBatching,
    batch_size_max: u32,
    held_until_count: usize,
}

/// The next request of a sequence.
#[derive(Clone, Debug)]
struct OldestCandidate<T> {
    entry: T,
    row: usize,
    /// Its own, but that it entered the queue when its turn came.
    facts: SchedulingParams,
}

impl<T: Entry> Entry for OldestCandidate<T> {
    type Owned = (usize, T::Owned);

    fn facts(&self) -> &SchedulingParams {
        &self.facts
    }

    fn is_waiting(&self) -> bool {
        self.entry.is_waiting()
    }

    fn claim(&self, reason: ClaimReason) -> Option<(usize, T::Owned)> {
        Some((self.row, self.entry.claim(reason)?))
    }

    fn member(&self) -> Option<&SequenceContext> {
        self.entry.member()
    }

    fn is_cancelled(&self) -> bool {
        self.entry.is_cancelled()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.entry.is_same(&other.entry)
    }
}

impl<T: Entry> OldestStrategy<T> {
    pub(super) fn new(
        settings: &DynamicBatching,
        batch_size_max: u32,
        instance_count: usize,
    ) -> OldestStrategy<T> {
        let mut oldest = OldestStrategy {
            batchers: Vec::with_capacity(instance_count),
            settings: settings.clone(),
            batch_size_max,
            held_until_count: 0,
        };
        for _ in 0..instance_count {
            oldest.add_instance();
        }
        oldest
    }

    pub(super) fn add_instance(&mut self) {
        let mut batcher = DynamicBatcher::new(&self.settings, self.batch_size_max, None);
        batcher.hold(self.held_until_count);
        self.batchers.push(batcher);
    }

    /// Each instance's batcher waits for so many.
    pub(super) fn hold(&mut self, count: usize) {
        self.held_until_count = count;
        for batcher in &mut self.batchers {
            batcher.hold(count);
        }
    }
}

impl<T: Entry> SequenceBatcher<T> {
    /// Makes the next request of the sequence in `slot`, which has one, a candidate.
    pub(super) fn promote(&mut self, slot: SlotId, now_ns: u64) {
        let SlotStrategy::Oldest(oldest) = &mut self.strategy else {
            return;
        };
        let state = &mut self.instances[slot.instance()].slots[slot.row()];
        let run = state.run.and_then(|id| self.table.get_mut(id));
        let Some((entry, _)) = run.and_then(|run| run.queue.pop_front()) else {
            return;
        };
        state.is_out = true;
        state.candidate = Some(entry.clone());
        if let Some(member) = entry.member() {
            member.leave_from(slot);
        }
        let facts = SchedulingParams {
            queued_ns: now_ns,
            ..entry.facts().clone()
        };
        oldest.batchers[slot.instance()].accept(OldestCandidate {
            entry,
            row: slot.row(),
            facts,
        });
        self.call(slot.instance());
    }

    pub(super) fn form_oldest(
        &mut self,
        instance: usize,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) {
        let SlotStrategy::Oldest(oldest) = &mut self.strategy else {
            return;
        };
        let mut candidates = SchedulerOutput::default();
        let poll_state = oldest.batchers[instance].form(now_ns, &mut candidates);
        for (row, owned) in candidates.batch {
            self.instances[instance].slots[row].candidate = None;
            output.batch.push(owned);
            output.rows.push(row);
        }
        let instance = &mut self.instances[instance];
        instance.deadline_ns = poll_state.deadline_ns;
        instance.is_called = poll_state.is_ready;
    }
}
