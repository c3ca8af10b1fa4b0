//! The instances of a model, their slots, and which cores have to ask for a batch.

use std::mem;
use std::ops::Range;

use conch_sync::NEVER_NS;

use super::member::{SequenceNumber, SlotId};
use super::slot::SequenceSlot;
use crate::entry::Entry;

/// The slots of one instance.
#[derive(Debug)]
pub(super) struct InstanceSlots<T> {
    core: usize,
    /// As many as were ever used.
    pub(super) slots: Vec<SequenceSlot<T>>,
    demand: CoreDemand,
    /// It was given a batch and has not asked again.
    pub(super) is_busy: bool,
}

/// When the core of an instance has to ask for a batch.
///
/// ```text
///            a request is ready (call)
///   none ─────────────────────────────► now ──┐
///    ▲ ▲                                 ▲    │ the core asks
///    │ │                 the time passes │    ▼
///    │ └───────────────── at a time ◄────┼─ forming ─┐
///    │   nothing waits       more waits  └───────────┤
///    └───────────────────────────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoreDemand {
    /// Only once a request arrives or comes back.
    None,
    /// What waits may wait until then.
    AtNs(u64),
    /// The core is called.
    Now,
}

impl CoreDemand {
    /// At `deadline_ns`, which may be [`NEVER_NS`].
    pub(super) fn at(deadline_ns: u64) -> CoreDemand {
        match deadline_ns {
            NEVER_NS => CoreDemand::None,
            _ => CoreDemand::AtNs(deadline_ns),
        }
    }
}

impl<T> InstanceSlots<T> {
    fn of(core: usize) -> InstanceSlots<T> {
        InstanceSlots {
            core,
            slots: Vec::new(),
            demand: CoreDemand::None,
            is_busy: false,
        }
    }

    /// Its core asks: true if it has to. What it then still has to ask for is said anew.
    pub(super) fn answer_call(&mut self) -> bool {
        let is_called = self.demand == CoreDemand::Now;
        if is_called {
            self.demand = CoreDemand::None;
        }
        is_called
    }

    pub(super) fn set_demand(&mut self, demand: CoreDemand) {
        self.demand = demand;
    }
}

/// All instances, by number. The instances of one core have consecutive numbers.
#[derive(Debug)]
pub(super) struct SequenceInstances<T> {
    list: Vec<InstanceSlots<T>>,
    /// The instances of each core; none of one that has not come yet.
    cores: Vec<Range<usize>>,
    /// Cores that were called since [`SequenceInstances::take_called`].
    called: Vec<usize>,
}

impl<T: Entry> SequenceInstances<T> {
    pub(super) fn new(instance_counts: &[usize]) -> SequenceInstances<T> {
        let mut list = Vec::new();
        let mut cores = Vec::with_capacity(instance_counts.len());
        for (core, count) in instance_counts.iter().enumerate() {
            let start = list.len();
            list.extend((0..*count).map(|_| InstanceSlots::of(core)));
            cores.push(start..list.len());
        }
        SequenceInstances {
            list,
            cores,
            called: Vec::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// The instances of `core`.
    pub(super) fn of_core(&self, core: usize) -> Range<usize> {
        self.cores.get(core).cloned().unwrap_or(0..0)
    }

    /// One instance more, of `core`, which has none.
    pub(super) fn add(&mut self, core: usize) {
        let instance = self.list.len();
        self.list.push(InstanceSlots::of(core));
        if self.cores.len() <= core {
            self.cores.resize(core + 1, 0..0);
        }
        assert!(self.cores[core].is_empty(), "a core comes twice");
        self.cores[core] = instance..instance + 1;
    }

    pub(super) fn get(&self, instance: usize) -> &InstanceSlots<T> {
        &self.list[instance]
    }

    pub(super) fn get_mut(&mut self, instance: usize) -> &mut InstanceSlots<T> {
        &mut self.list[instance]
    }

    pub(super) fn slot(&self, slot: SlotId) -> &SequenceSlot<T> {
        &self.list[slot.instance()].slots[slot.row()]
    }

    pub(super) fn slot_mut(&mut self, slot: SlotId) -> &mut SequenceSlot<T> {
        &mut self.list[slot.instance()].slots[slot.row()]
    }

    /// A sequence gets `slot`, which may never have been used.
    pub(super) fn occupy(&mut self, slot: SlotId, sequence: SequenceNumber) {
        let slots = &mut self.list[slot.instance()].slots;
        if slots.len() <= slot.row() {
            slots.resize(slot.row() + 1, SequenceSlot::default());
        }
        slots[slot.row()].occupy(sequence);
    }

    /// Takes `entry` back if it is the candidate of `slot`, which may never have been used.
    pub(super) fn withdraw(&mut self, slot: SlotId, entry: &T) -> bool {
        let instance = self.list.get_mut(slot.instance());
        let slot = instance.and_then(|instance| instance.slots.get_mut(slot.row()));
        slot.is_some_and(|slot| slot.withdraw(entry))
    }

    /// Wants the core of `instance` to ask for a batch.
    pub(super) fn call(&mut self, instance: usize) {
        let instance = &mut self.list[instance];
        if mem::replace(&mut instance.demand, CoreDemand::Now) != CoreDemand::Now {
            self.called.push(instance.core);
        }
    }

    pub(super) fn call_all(&mut self) {
        for instance in &mut self.list {
            instance.demand = CoreDemand::Now;
            self.called.push(instance.core);
        }
    }

    /// Calls the cores whose time has come.
    pub(super) fn call_due(&mut self, now_ns: u64) {
        for instance in &mut self.list {
            if matches!(instance.demand, CoreDemand::AtNs(at_ns) if at_ns <= now_ns) {
                instance.demand = CoreDemand::Now;
                self.called.push(instance.core);
            }
        }
    }

    /// Calls `core` again if it still has something to ask for: its calls end as it asks.
    pub(super) fn call_again(&mut self, core: usize) {
        let mut instances = self.list[self.of_core(core)].iter();
        if instances.any(|instance| instance.demand == CoreDemand::Now) {
            self.called.push(core);
        }
    }

    /// Moves the numbers of the called cores to `called`.
    pub(super) fn take_called(&mut self, called: &mut Vec<usize>) {
        called.append(&mut self.called);
    }

    /// When the next core is to be called.
    pub(super) fn next_ns(&self) -> u64 {
        let times = self
            .list
            .iter()
            .filter_map(|instance| match instance.demand {
                CoreDemand::AtNs(at_ns) => Some(at_ns),
                CoreDemand::None | CoreDemand::Now => None,
            });
        times.min().unwrap_or(NEVER_NS)
    }
}
