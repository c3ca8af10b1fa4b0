//! The oldest strategy: each instance batches its sequences' next requests, one of each, as a
//! dynamic batcher would.

use conch_config::DynamicBatching;
use conch_sync::ClaimReason;

use super::instances::CoreDemand;
use super::member::{SequenceContext, SlotId};
use super::slot::SequenceSlot;
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

    /// The next request of the sequence in `slot` waits in the batcher of its instance from now on.
    pub(super) fn accept(&mut self, entry: T, slot: SlotId, now_ns: u64) {
        let facts = SchedulingParams {
            queued_ns: now_ns,
            ..entry.facts().clone()
        };
        self.batchers[slot.instance()].accept(OldestCandidate {
            entry,
            row: slot.row(),
            facts,
        });
    }

    /// Forms a batch of the candidates of `instance`. Returns when its core has to ask again.
    pub(super) fn form(
        &mut self,
        instance: usize,
        slots: &mut [SequenceSlot<T>],
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) -> CoreDemand {
        let mut candidates = SchedulerOutput::default();
        let poll_state = self.batchers[instance].form(now_ns, &mut candidates);
        for (row, owned) in candidates.batch {
            let candidate = slots[row].give_out();
            if let Some(member) = candidate.as_ref().and_then(Entry::member) {
                member.give_out();
            }
            output.batch.push(owned);
            output.rows.push(row);
        }
        if poll_state.is_ready {
            CoreDemand::Now
        } else {
            CoreDemand::at(poll_state.deadline_ns)
        }
    }
}
