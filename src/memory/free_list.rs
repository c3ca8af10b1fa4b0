//! Free blocks of one class of a pool.
//!
//! The block that came back last is given out first, as its bytes are likely still in a cache. A
//! queue alone would give out the one that has rested for longest.
//!
//! A list keeps what came back after the busiest moment. So it remembers how few blocks were free
//! at any look: those were not needed since, and half of them are let go of.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crossbeam_queue::ArrayQueue;

/// Blocks that are given out in turn, the last one first.
const RECENT_MAX: usize = 8;
/// So many rested blocks are looked at in search of a wanted one.
const SEARCH_MAX: usize = 4;

/// Nobody waits for another thread. Its slots are made for the first block that comes back: all
/// classes of a pool together have 800 KB of them, and most servers use few classes.
pub(crate) struct FreeList<T> {
    blocks: OnceLock<FreeBlocks<T>>,
    /// Beside the recent ones.
    rested_max: usize,
    /// The fewest at any look since blocks were last let go of.
    unused_count: AtomicUsize,
}

struct FreeBlocks<T> {
    /// The last to come back, in order. Who finds it locked uses the rested ones: a thread that
    /// holds the lock may lose its CPU.
    recent: Mutex<VecDeque<T>>,
    rested: ArrayQueue<T>,
}

impl<T> FreeList<T> {
    pub(crate) fn new(rested_max: usize) -> FreeList<T> {
        FreeList {
            blocks: OnceLock::new(),
            rested_max,
            unused_count: AtomicUsize::new(usize::MAX),
        }
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let blocks = self.blocks.get()?;
        blocks.pop_recent().or_else(|| blocks.rested.pop())
    }

    /// As [`FreeList::pop`], if possible one that is wanted: of the recent ones, or of the next
    /// few rested ones. Else one that has rested.
    pub(crate) fn pop_wanted(&self, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        let blocks = self.blocks.get()?;
        if let Ok(mut recent) = blocks.recent.try_lock()
            && let Some(index) = recent.iter().rposition(&is_wanted)
        {
            return recent.remove(index);
        }
        for _ in 1..SEARCH_MAX {
            let Some(block) = blocks.rested.pop() else {
                break;
            };
            if is_wanted(&block) {
                return Some(block);
            }
            if let Err(block) = blocks.rested.push(block) {
                // Others have filled its place meanwhile.
                return Some(block);
            }
        }
        blocks.pop_oldest()
    }

    /// # Errors
    /// Without room, a block that is to be freed in place of this one.
    pub(crate) fn push(&self, block: T) -> Result<(), T> {
        let blocks = match self.blocks.get() {
            Some(blocks) => blocks,
            None => {
                // Two threads may both make them; nobody waits for the other's.
                let _ = self.blocks.set(FreeBlocks::new(self.rested_max));
                match self.blocks.get() {
                    Some(blocks) => blocks,
                    None => return Err(block),
                }
            }
        };
        let Ok(mut recent) = blocks.recent.try_lock() else {
            return blocks.rested.push(block);
        };
        let oldest = match recent.len() {
            RECENT_MAX.. => recent.pop_front(),
            _ => None,
        };
        recent.push_back(block);
        drop(recent);
        oldest.map_or(Ok(()), |oldest| blocks.rested.push(oldest))
    }

    /// Takes out what is free, each block once: others give back meanwhile.
    pub(crate) fn drain(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.rested_max + RECENT_MAX).map_while(|_| self.pop())
    }

    /// Notes how many are free. Relaxed: a figure that guards nothing.
    pub(crate) fn note_free(&self) {
        let count = self.blocks.get().map_or(0, FreeBlocks::len);
        self.unused_count.fetch_min(count, Ordering::Relaxed);
    }

    /// Takes out half of what was free at every look since the last call, rounded up: those that
    /// have rested for longest.
    pub(crate) fn take_unused(&self) -> impl Iterator<Item = T> + '_ {
        let count = match self.unused_count.swap(usize::MAX, Ordering::Relaxed) {
            usize::MAX => 0,
            count => count.div_ceil(2),
        };
        (0..count).map_while(|_| self.blocks.get()?.pop_oldest())
    }
}

impl<T> FreeBlocks<T> {
    fn new(rested_max: usize) -> FreeBlocks<T> {
        FreeBlocks {
            recent: Mutex::new(VecDeque::with_capacity(RECENT_MAX)),
            rested: ArrayQueue::new(rested_max),
        }
    }

    fn pop_recent(&self) -> Option<T> {
        self.recent.try_lock().ok()?.pop_back()
    }

    fn pop_oldest(&self) -> Option<T> {
        let rested = self.rested.pop();
        rested.or_else(|| self.recent.try_lock().ok()?.pop_front())
    }

    fn len(&self) -> usize {
        let recent_count = self.recent.try_lock().map_or(0, |recent| recent.len());
        recent_count + self.rested.len()
    }
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
        assert_eq!(list.push(10), Err(2), "0 and 1 have rested for longer");
        let order: Vec<_> = list.drain().collect();
        assert_eq!(order, [10, 9, 8, 7, 6, 5, 4, 3, 0, 1]);
    }

    #[test]
    fn who_finds_the_recent_ones_locked_uses_the_rested() {
        let list = FreeList::new(2);
        list.push(0).unwrap();
        let recent = list.blocks.get().unwrap().recent.lock().unwrap();
        list.push(1).unwrap();
        assert_eq!(list.pop_wanted(|block| *block == 0), Some(1));
        list.push(1).unwrap();
        assert_eq!([list.pop(), list.pop()], [Some(1), None]);
        drop(recent);
        assert_eq!(list.pop(), Some(0));
    }

    #[test]
    fn two_who_take_turns_find_their_own() {
        let list = FreeList::new(8);
        for owner in ['a', 'b'] {
            (0..4).for_each(|_| list.push(owner).unwrap());
        }
        for owner in ['a', 'b', 'a', 'b'] {
            for _ in 0..4 {
                assert_eq!(list.pop_wanted(|block| *block == owner), Some(owner));
            }
            (0..4).for_each(|_| list.push(owner).unwrap());
        }
        // Those of one who is gone do not stay among the recent ones, and go first, in any order.
        (0..8).for_each(|_| list.push('c').unwrap());
        let mut found: Vec<_> = (0..8)
            .filter_map(|_| list.pop_wanted(|block| *block == 'd'))
            .collect();
        found.sort_unstable();
        assert_eq!(found.iter().collect::<String>(), "aaaabbbb");
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
