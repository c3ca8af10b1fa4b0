//! Free slots. The lowest row comes first, so sequences spread over the instances; slots exist once
//! they are used.

use std::collections::BTreeSet;

use super::member::SlotId;

#[derive(Debug)]
pub(super) struct FreeSlots {
    row_count: u32,
    /// Of each instance the first slot that was never used, unless there is none; all behind it are
    /// free, too. And used ones that are free again.
    free: BTreeSet<SlotId>,
    /// By instance: the row of that first slot. None: the instance takes no sequences any more.
    fresh: Vec<Option<u32>>,
    /// Instances that take sequences.
    open_count: usize,
}

impl FreeSlots {
    pub(super) fn new(instance_count: usize, row_count: u32) -> FreeSlots {
        let mut free_slots = FreeSlots {
            row_count,
            free: BTreeSet::new(),
            fresh: Vec::with_capacity(instance_count),
            open_count: 0,
        };
        for _ in 0..instance_count {
            free_slots.add_instance();
        }
        free_slots
    }

    /// All slots of the instances that take sequences.
    pub(super) fn total_count(&self) -> usize {
        self.open_count.saturating_mul(self.row_count as usize)
    }

    /// The slots of another instance are free, too.
    pub(super) fn add_instance(&mut self) {
        let instance = u32::try_from(self.fresh.len()).unwrap_or(u32::MAX);
        self.fresh.push(Some(0));
        self.open_count += 1;
        if self.row_count > 0 {
            self.free.insert(SlotId { row: 0, instance });
        }
    }

    /// No slot of `instance` is given out any more.
    pub(super) fn close_instance(&mut self, instance: usize) {
        let fresh = self.fresh.get_mut(instance);
        if fresh.and_then(Option::take).is_some() {
            self.open_count -= 1;
        }
        self.free.retain(|slot| slot.instance() != instance);
    }

    /// Removes the lowest free slot.
    pub(super) fn pop_lowest(&mut self) -> Option<SlotId> {
        let slot = self.free.pop_first()?;
        if let Some(Some(fresh)) = self.fresh.get_mut(slot.instance())
            && *fresh == slot.row
        {
            *fresh += 1;
            if *fresh < self.row_count {
                let row = *fresh;
                self.free.insert(SlotId { row, ..slot });
            }
        }
        Some(slot)
    }

    /// Whether the instance of `slot` takes more sequences.
    pub(super) fn is_open(&self, slot: SlotId) -> bool {
        matches!(self.fresh.get(slot.instance()), Some(Some(_)))
    }

    /// `slot` is free again, unless its instance takes no more sequences.
    pub(super) fn insert(&mut self, slot: SlotId) {
        if self.is_open(slot) {
            assert!(self.free.insert(slot), "a slot becomes free twice");
        }
    }
}
