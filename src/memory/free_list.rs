//! Free blocks of one class of a pool.
//!
//! A list keeps what came back after the busiest moment. So it remembers how few blocks were free
//! at any look: those were not needed since, and half of them are let go of.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

/// Its slots are made for the first block that comes back: all classes of a pool together have
/// 800 KB of them, and most servers use few classes.
pub(crate) struct FreeList<T> {
    slots: OnceLock<ArrayQueue<T>>,
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
        self.slots.get()?.pop()
    }

    /// # Errors
    /// Gives `block` back if there is no room.
    pub(crate) fn push(&self, block: T) -> Result<(), T> {
        let slots = match self.slots.get() {
            Some(slots) => slots,
            None => {
                // Two threads may both make slots; nobody waits for the other's.
                let _ = self.slots.set(ArrayQueue::new(self.length_max));
                match self.slots.get() {
                    Some(slots) => slots,
                    None => return Err(block),
                }
            }
        };
        slots.push(block)
    }

    /// Takes out what is free, each block once: others give back meanwhile.
    pub(crate) fn drain(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.length_max).map_while(|_| self.pop())
    }

    /// Notes how many are free. Relaxed: a figure that guards nothing.
    pub(crate) fn note_free(&self) {
        let count = self.slots.get().map_or(0, ArrayQueue::len);
        self.unused_count.fetch_min(count, Ordering::Relaxed);
    }

    /// Takes out half of what was free at every look since the last call, rounded up.
    pub(crate) fn take_unused(&self) -> impl Iterator<Item = T> + '_ {
        let count = match self.unused_count.swap(usize::MAX, Ordering::Relaxed) {
            usize::MAX => 0,
            count => count.div_ceil(2),
        };
        (0..count).map_while(|_| self.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_free_at_every_look_is_taken_out() {
        let list = FreeList::new(8);
        assert_eq!(list.take_unused().count(), 0, "no look, no slots");
        list.note_free();
        assert_eq!(list.take_unused().count(), 0);
        for block in 0..8 {
            list.push(block).unwrap();
        }
        assert_eq!(list.push(8), Err(8));
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
