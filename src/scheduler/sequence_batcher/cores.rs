//! Cores that come and leave while sequences are under way.

use super::batcher::{SequenceBatcher, SlotStrategy};
use super::member::SlotId;
use crate::entry::Entry;

impl<T: Entry> SequenceBatcher<T> {
    /// Core `core` has come since, with one instance, which takes sequences of the backlog.
    pub(super) fn add_core(&mut self, core: usize, now_ns: u64) {
        self.instances.add(core);
        if let SlotStrategy::Oldest(oldest) = &mut self.strategy {
            oldest.add_instance();
        }
        self.free_slots.add_instance();
        while self.table.backlog_count() > 0
            && let Some(slot) = self.free_slots.pop_lowest()
        {
            match self.table.promote(slot, now_ns) {
                Some(id) => {
                    self.occupy(slot, id, now_ns);
                    self.update_slot(slot, now_ns);
                }
                None => self.free_slots.insert(slot),
            }
        }
    }

    /// Core `core` is to leave: no more sequences go to it. True once it has none and nothing of it
    /// is out.
    pub fn drain(&mut self, core: usize) -> bool {
        let mut instances = self.instances.of_core(core);
        for instance in instances.clone() {
            self.free_slots.close_instance(instance);
        }
        instances.all(|instance| {
            let instance = self.instances.get(instance);
            !instance.is_busy && instance.slots.iter().all(|slot| slot.is_free())
        })
    }

    /// Ends the sequences of `core`: what they have waiting is executed. Returns how many there
    /// were.
    pub fn end_all(&mut self, core: usize, now_ns: u64) -> usize {
        let mut count = 0;
        for instance in self.instances.of_core(core) {
            for row in 0..self.instances.get(instance).slots.len() {
                let slot = SlotId::new(instance, row);
                let Some(id) = self.instances.slot(slot).holder() else {
                    continue;
                };
                count += usize::from(self.table.get(id).is_some_and(|run| !run.is_ending));
                self.table.close(id);
                self.update_slot(slot, now_ns);
            }
        }
        count
    }
}
