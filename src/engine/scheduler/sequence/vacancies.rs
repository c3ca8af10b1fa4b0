//! Free slots. The lowest row comes first, so sequences spread over the instances; slots exist once they are used.

use std::collections::BTreeSet;

use super::member::SlotId;

#[derive(Debug)]
pub(super) struct FreeSlots {
    row_count: u32,
    /// Of each seat the first slot that was never used, unless there is none; all behind it are free, too. And used ones that are free again.
    free: BTreeSet<SlotId>,
    /// By seat: the row of that first slot. None: the seat takes no sequences any more.
    fresh: Vec<Option<u32>>,
}

impl FreeSlots {
    pub(super) fn new(seat_count: usize, row_count: u32) -> FreeSlots {
        let mut vacancies = FreeSlots {
            row_count,
            free: BTreeSet::new(),
            fresh: Vec::with_capacity(seat_count),
        };
        for _ in 0..seat_count {
            vacancies.add_seat();
        }
        vacancies
    }

    /// The slots of another seat are free, too.
    pub(super) fn add_seat(&mut self) {
        let seat = u32::try_from(self.fresh.len()).unwrap_or(u32::MAX);
        self.fresh.push(Some(0));
        if self.row_count > 0 {
            self.free.insert(SlotId { row: 0, seat });
        }
    }

    /// No slot of `seat` is given out any more.
    pub(super) fn close_seat(&mut self, seat: usize) {
        if let Some(fresh) = self.fresh.get_mut(seat) {
            *fresh = None;
        }
        self.free.retain(|slot| slot.seat() != seat);
    }

    /// Takes the lowest free slot.
    pub(super) fn take(&mut self) -> Option<SlotId> {
        let slot = self.free.pop_first()?;
        if let Some(Some(fresh)) = self.fresh.get_mut(slot.seat())
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

    /// Whether `slot`, which becomes free, may be given out again.
    pub(super) fn is_wanted(&self, slot: SlotId) -> bool {
        matches!(self.fresh.get(slot.seat()), Some(Some(_)))
    }

    pub(super) fn give(&mut self, slot: SlotId) {
        if self.is_wanted(slot) {
            self.free.insert(slot);
        }
    }
}
