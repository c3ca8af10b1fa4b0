//! Free blocks of one class of a pool.
//!
//! The block that came back last is given out first, as its bytes are likely still in a cache. A
//! queue alone would give out the one that has rested for longest.
//!
//! A list keeps what came back after the busiest moment. So it remembers how few blocks were free
//! at any look: those were not needed since, and half of them are let go of.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crossbeam_queue::ArrayQueue;

/// Blocks that are given out in turn, the last one first.
const RECENT_MAX: usize = 8;

/// Its slots are made for the first block that comes back: all classes of a pool together have
/// 800 KB of them, and most servers use few classes.
pub(crate) struct FreeList<T> {
    slots: OnceLock<Slots<T>>,
    /// Beside the recent ones.
    length_max: usize,
    /// The fewest at any look since blocks were last let go of.
    unused_count: AtomicUsize,
}

impl<T> FreeList<T> {
    pub(crate) fn new(length_max: usize) -> FreeList<T> {
        FreeList {
            slots: OnceLock::new(),
            length_max,
            unused_count: AtomicUsize::new(usize::MAX),
        }
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let slots = self.slots.get()?;
        let recent = slots.recent.try_lock().ok();
        recent
            .and_then(|mut recent| recent.pop())
            .or_else(|| slots.others.pop())
    }

    /// # Errors
    /// Gives `block` back if there is no room.
    pub(crate) fn push(&self, block: T) -> Result<(), T> {
        let slots = match self.slots.get() {
            Some(slots) => slots,
            None => {
                // Two threads may both make slots; nobody waits for the other's.
                let _ = self.slots.set(Slots {
                    recent: Mutex::new(Vec::with_capacity(RECENT_MAX)),
                    others: ArrayQueue::new(self.length_max),
                });
                match self.slots.get() {
                    Some(slots) => slots,
                    None => return Err(block),
                }
            }
        };
        if let Ok(mut recent) = slots.recent.try_lock()
            && recent.len() < RECENT_MAX
        {
            recent.push(block);
            return Ok(());
        }
        slots.others.push(block)
    }

    /// Takes out what is free, each block once: others give back meanwhile.
    pub(crate) fn drain(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.length_max + RECENT_MAX).map_while(|_| self.pop())
    }

    /// Notes how many are free. Relaxed: a figure that guards nothing.
    pub(crate) fn note_free(&self) {
        let count = self.slots.get().map_or(0, |slots| {
            slots.others.len() + slots.recent.try_lock().map_or(0, |recent| recent.len())
        });
        self.unused_count.fetch_min(count, Ordering::Relaxed);
    }

    /// Takes out half of what was free at every look since the last call, rounded up: those that
    /// have rested for longest.
    pub(crate) fn take_unused(&self) -> impl Iterator<Item = T> + '_ {
        let count = match self.unused_count.swap(usize::MAX, Ordering::Relaxed) {
            usize::MAX => 0,
            count => count.div_ceil(2),
        };
        let rested = || self.slots.get()?.others.pop();
        (0..count).map_while(move |_| rested().or_else(|| self.pop()))
    }
}

struct Slots<T> {
    /// Nobody waits for it: who finds it locked uses the others.
    recent: Mutex<Vec<T>>,
    others: ArrayQueue<T>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_come_first_and_room_ends() {
        let list = FreeList::new(2);
        for block in 0..RECENT_MAX + 2 {
            list.push(block).unwrap();
        }
        assert_eq!(list.push(77), Err(77));
        let order: Vec<_> = list.drain().collect();
        assert_eq!(order, [7, 6, 5, 4, 3, 2, 1, 0, 8, 9]);
    }

    #[test]
    fn who_finds_the_recent_ones_locked_uses_the_others() {
        let list = FreeList::new(2);
        list.push(0).unwrap();
        let recent = list.slots.get().unwrap().recent.lock().unwrap();
        list.push(1).unwrap();
        assert_eq!([list.pop(), list.pop()], [Some(1), None]);
        drop(recent);
        assert_eq!(list.pop(), Some(0));
    }

    #[test]
    fn half_of_what_is_free_at_every_look_is_taken_out() {
        let list = FreeList::new(8);
        assert_eq!(list.take_unused().count(), 0, "no look, no slots");
        list.note_free();
        assert_eq!(list.take_unused().count(), 0);
        for block in 0..8 {
            list.push(block).unwrap();
        }
        assert_eq!(list.take_unused().count(), 0, "no look since");
        list.note_free();
        let used: Vec<_> = (0..5).filter_map(|_| list.pop()).collect();
        list.note_free();
        for block in used {
            list.push(block).unwrap();
        }
        list.note_free();
        assert_eq!(list.take_unused().count(), 2, "three were free at any time");
        let left = [6, 5, 4].map(|_| {
            list.note_free();
            list.take_unused().count()
        });
        assert_eq!(left, [3, 2, 1]);
        assert_eq!(list.drain().count(), 0);
    }
}
