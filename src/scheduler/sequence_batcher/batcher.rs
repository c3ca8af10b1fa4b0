//! The state of the sequence batcher, and what follows from each event in a slot.

use conch_config::{SequenceBatching, SequenceStrategy};
use conch_sync::ClaimReason;

use super::direct::DirectStrategy;
use super::free_slots::FreeSlots;
use super::idle::IdleSequences;
use super::instances::SequenceInstances;
use super::member::{SequenceKey, SequenceNumber, SlotId};
use super::oldest::OldestStrategy;
use super::table::SequenceTable;
use crate::delay::SchedulerDelay;
use crate::entry::Entry;
use crate::output::{Dismissal, SchedulerOutput};

/// The slots of all instances, the sequences that hold them, and those that wait for one.
#[derive(Debug)]
pub struct SequenceBatcher<T: Entry> {
    pub(super) strategy: SlotStrategy<T>,
    pub(super) table: SequenceTable<T>,
    pub(super) free_slots: FreeSlots,
    pub(super) idle: IdleSequences,
    pub(super) instances: SequenceInstances<T>,
    pub(super) idle_ns: u64,
    pub(super) backlog_max: usize,
    pub(super) is_iterative: bool,
    /// Requests that were taken in and not given out.
    pub(super) waiting_count: usize,
    /// Requests that were given out and are to come back.
    pub(super) out_count: usize,
    /// What must wait before anything is executed, until it has.
    pub(super) delay: Option<SchedulerDelay>,
}

/// The slots of a model with sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotUsage {
    /// More than there are while an instance ends that sequences are still on.
    pub used_count: usize,
    pub total_count: usize,
}

#[derive(Debug)]
pub(super) enum SlotStrategy<T: Entry> {
    Direct(DirectStrategy),
    Oldest(OldestStrategy<T>),
}

impl<T: Entry> SequenceBatcher<T> {
    /// `instance_counts` are the instances of each core.
    pub fn new(
        settings: &SequenceBatching,
        batch_size_max: u32,
        instance_counts: &[usize],
    ) -> SequenceBatcher<T> {
        let instances = SequenceInstances::new(instance_counts);
        let strategy = match &settings.strategy {
            SequenceStrategy::Direct {
                delay_us,
                utilization_min,
            } => SlotStrategy::Direct(DirectStrategy::new(
                *delay_us,
                *utilization_min,
                batch_size_max,
                settings.is_iterative,
            )),
            SequenceStrategy::Oldest(batching) => SlotStrategy::Oldest(OldestStrategy::new(
                batching,
                batch_size_max,
                instances.count(),
            )),
        };
        SequenceBatcher {
            strategy,
            table: SequenceTable::default(),
            free_slots: FreeSlots::new(instances.count(), settings.slot_count),
            idle: IdleSequences::default(),
            instances,
            idle_ns: settings.idle_us.saturating_mul(1_000),
            backlog_max: settings
                .backlog_max
                .and_then(|max| max.try_into().ok())
                .unwrap_or(usize::MAX),
            is_iterative: settings.is_iterative,
            waiting_count: 0,
            out_count: 0,
            delay: None,
        }
    }

    /// See [`SchedulerDelay`].
    pub fn hold(&mut self, delay: SchedulerDelay) {
        match &mut self.strategy {
            SlotStrategy::Direct(_) => self.delay = Some(delay),
            SlotStrategy::Oldest(oldest) => oldest.hold(delay.request_count),
        }
    }

    /// Whether requests that were given out are to be brought back by [`SequenceBatcher::release`]
    /// or [`SequenceBatcher::reschedule`].
    pub fn awaits(&self) -> bool {
        self.is_iterative || matches!(self.strategy, SlotStrategy::Oldest(_))
    }

    /// Sequences that take requests.
    pub fn open_count(&self) -> usize {
        self.table.open_count()
    }

    /// How many slots sequences hold, and how many there are for them.
    pub fn slot_usage(&self) -> SlotUsage {
        SlotUsage {
            used_count: self.table.slot_count(),
            total_count: self.free_slots.total_count(),
        }
    }

    /// Whether the sequence of this run, which is under way, does not wait for a slot.
    #[doc(hidden)]
    pub fn has_slot(&self, run: u64) -> bool {
        self.table.get(run).is_none_or(|run| run.slot.is_some())
    }

    /// The names of the sequences that take requests. From now on each output tells which of them
    /// do not any more.
    pub fn hand_over(&mut self) -> Vec<SequenceKey> {
        self.table.track_ends()
    }

    /// Ends a sequence, if there is one of this name: what it has waiting is executed, and nothing
    /// joins it.
    pub fn end(&mut self, key: &SequenceKey, now_ns: u64) {
        let Some(id) = self.table.find(key) else {
            return;
        };
        self.table.close(id);
        if let Some(slot) = self.table.get(id).and_then(|run| run.slot) {
            self.update_slot(slot, now_ns);
        }
    }

    /// Whether no sequence holds this slot and nothing of it is executed: slot `row` of the
    /// `instance`th of a core's instances.
    pub fn is_free(&self, core: usize, instance: usize, row: usize) -> bool {
        let Some(instance) = self.instances.of_core(core).nth(instance) else {
            return true;
        };
        let slot = self.instances.get(instance).slots.get(row);
        slot.is_none_or(|slot| slot.is_free())
    }

    /// A sequence gets a slot.
    pub(super) fn occupy(&mut self, slot: SlotId, id: SequenceNumber, now_ns: u64) {
        self.instances.occupy(slot, id);
        let idle_check_ns = now_ns.saturating_add(self.idle_ns);
        if let Some(run) = self.table.get_mut(id) {
            run.idle_check_ns = idle_check_ns;
            self.idle.insert(id, idle_check_ns);
        }
    }

    /// After any event in `slot`: frees it if its sequence is over, else lets what waits in it go
    /// on.
    pub(super) fn update_slot(&mut self, slot: SlotId, now_ns: u64) {
        loop {
            let state = self.instances.slot(slot);
            let is_out = state.is_out();
            let is_held_back = state.is_held_back(self.is_iterative);
            let Some(run) = state.holder().and_then(|id| self.table.get(id)) else {
                return;
            };
            if !run.queue.is_empty() {
                match &mut self.strategy {
                    SlotStrategy::Direct(_) if is_held_back => return,
                    SlotStrategy::Direct(_) => {
                        self.instances.call(slot.instance());
                        return;
                    }
                    SlotStrategy::Oldest(_) if is_out => return,
                    SlotStrategy::Oldest(_) => self.add_candidate(slot, now_ns),
                }
            } else if run.is_ending && !is_held_back {
                if !self.vacate(slot, now_ns) {
                    return;
                }
            } else {
                return;
            }
        }
    }

    /// The next request of the sequence in `slot`, which has one, becomes a candidate.
    fn add_candidate(&mut self, slot: SlotId, now_ns: u64) {
        let SlotStrategy::Oldest(oldest) = &mut self.strategy else {
            return;
        };
        let state = self.instances.slot_mut(slot);
        let run = state.holder().and_then(|id| self.table.get_mut(id));
        let Some((entry, _)) = run.and_then(|run| run.queue.pop_front()) else {
            return;
        };
        if let Some(member) = entry.member() {
            member.enter(slot);
        }
        state.set_candidate(entry.clone());
        oldest.accept(entry, slot, now_ns);
        self.instances.call(slot.instance());
    }

    /// Ends the sequence of `slot`, which has nothing waiting. True if the slot has another one
    /// now.
    fn vacate(&mut self, slot: SlotId, now_ns: u64) -> bool {
        let id = self.instances.slot_mut(slot).vacate();
        if let Some(run) = self.table.remove(id) {
            assert!(run.queue.is_empty(), "a sequence ends with requests");
            self.idle.remove(id, run.idle_check_ns);
        }
        let next = self
            .free_slots
            .is_open(slot)
            .then(|| self.table.promote(slot, now_ns));
        match next.flatten() {
            Some(id) => {
                self.occupy(slot, id, now_ns);
                true
            }
            None => {
                self.free_slots.insert(slot);
                false
            }
        }
    }

    /// A request that waited in a queue is executed or answered.
    pub(super) fn count_out_of_queue(&mut self, count: usize) {
        let rest = self.waiting_count.checked_sub(count);
        self.waiting_count = rest.expect("a request waits once");
    }

    /// Answers requests that were taken out of the queue of their sequence.
    pub(super) fn refuse_all(
        &mut self,
        queue: impl IntoIterator<Item = (T, u64)>,
        reason: ClaimReason,
        why: Dismissal,
        output: &mut SchedulerOutput<T::Owned>,
    ) {
        for (entry, _) in queue {
            self.count_out_of_queue(1);
            output.refuse(&entry, reason, why);
        }
    }
}
