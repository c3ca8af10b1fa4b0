//! Which slots have states in the memory of a GPU, for sequences that end without a request: they
//! were idle for too long, or their last request was never executed.
//!
//! A core keeps the states of its slots and does not look at a slot until a request comes there.
//! So whoever drives the model's scheduler, be it a core, the timer thread or a sender, sees to
//! slots that are free, under the scheduler's lock, and gives up their memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::model::states::SequenceStates;

/// The slots of a model's instances that have states on devices. Empty for every other model.
#[derive(Debug, Default)]
pub(crate) struct GrowableSlots {
    /// At most one for each slot, and those whose last request is still held.
    held: Mutex<Vec<(SlotPlace, Weak<Mutex<SequenceStates>>)>>,
}

/// A slot: one row of one instance of a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotPlace {
    pub(crate) core: usize,
    pub(crate) instance: usize,
    pub(crate) row: usize,
}

impl GrowableSlots {
    /// The sequence in `place` has these states.
    pub(super) fn add(&self, place: SlotPlace, states: &Arc<Mutex<SequenceStates>>) {
        let mut held = self.lock();
        held.retain(|(_, states)| states.strong_count() > 0);
        held.push((place, Arc::downgrade(states)));
    }

    /// Gives up the memory of slots that are free. Blocks for no device.
    pub(crate) fn sweep(&self, is_free: impl Fn(SlotPlace) -> bool) {
        self.lock().retain(|(place, states)| {
            let Some(states) = states.upgrade() else {
                return false;
            };
            if !is_free(*place) {
                return true;
            }
            // A backend that still holds the last request may be at it: next time then.
            let Ok(mut states) = states.try_lock() else {
                return true;
            };
            states.give_up_memory();
            false
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(SlotPlace, Weak<Mutex<SequenceStates>>)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
