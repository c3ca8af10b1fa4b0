//! Free slots. The lowest row comes first, so sequences spread over the instances; slots exist once they are used.

use std::collections::BTreeSet;

use super::member::SlotId;

#[derive(Debug)]
pub(super) struct Vacancies {
    seat_count: u32,
    row_count: u32,
    /// The first slot that was never used, in order; all behind it are free.
    fresh: SlotId,
    /// Used ones that are free again: all in front of `fresh`.
    returned: BTreeSet<SlotId>,
}

impl Vacancies {
    pub(super) fn new(seat_count: usize, row_count: u32) -> Vacancies {
        Vacancies {
            seat_count: u32::try_from(seat_count).unwrap_or(u32::MAX),
            row_count,
            fresh: SlotId { row: 0, seat: 0 },
            returned: BTreeSet::new(),
        }
    }

    /// Takes the lowest free slot.
    pub(super) fn take(&mut self) -> Option<SlotId> {
        if let Some(slot) = self.returned.pop_first() {
            return Some(slot);
        }
        let slot = self.fresh;
        if slot.row >= self.row_count || self.seat_count == 0 {
            return None;
        }
        self.fresh = if slot.seat + 1 < self.seat_count {
            SlotId {
                seat: slot.seat + 1,
                ..slot
            }
        } else {
            SlotId {
                row: slot.row + 1,
                seat: 0,
            }
        };
        Some(slot)
    }

    pub(super) fn give(&mut self, slot: SlotId) {
        self.returned.insert(slot);
    }
}
