//! Reusable size-classed blocks, shared by all threads without locks.
//!
//! Classes grow by powers of two with four steps each (…, 64, 80, 96, 112, 128 KiB, …), so at most a fifth of a block is unused.
//! Blocks below [`SMALLEST_CLASS_BYTES`] go to the allocator, which is faster for them; blocks above [`LARGEST_CLASS_BYTES`] are
//! mapped and unmapped each time, which costs less than using them. What the pool retains is bounded by `retain_bytes_max`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::block::{Block, Memory};

const SMALLEST_CLASS_BYTES: usize = 4 << 10;
const LARGEST_CLASS_BYTES: usize = 16 << 20;
const STEPS: usize = 4;
/// log2(16 MiB / 4 KiB) doublings of four steps, and the last size itself.
const CLASS_COUNT: usize = 12 * STEPS + 1;
/// Free blocks kept per class; with 4 KiB blocks this is 1 MiB.
const FREE_BLOCKS_MAX: usize = 256;

/// A recycler of [`Block`]s. Cheap to share; a block returns to its pool when dropped, on whatever thread.
pub struct Pool {
    classes: Vec<ArrayQueue<Memory>>,
    retained_bytes: AtomicUsize,
    retain_bytes_max: usize,
}

impl Pool {
    /// A pool that keeps at most `retain_bytes_max` bytes of free blocks.
    pub fn new(retain_bytes_max: usize) -> Arc<Pool> {
        let classes = (0..CLASS_COUNT)
            .map(|_| ArrayQueue::new(FREE_BLOCKS_MAX))
            .collect();
        Arc::new(Pool {
            classes,
            retained_bytes: AtomicUsize::new(0),
            retain_bytes_max,
        })
    }

    /// An empty block with room for at least `capacity` bytes.
    pub fn take(self: &Arc<Pool>, capacity: usize) -> Block {
        let Some((class, class_bytes)) = class_of(capacity) else {
            return Block::with_capacity(capacity);
        };
        let recycled = self.classes.get(class).and_then(ArrayQueue::pop);
        let memory = match recycled {
            Some(memory) => {
                self.retained_bytes
                    .fetch_sub(memory.capacity(), Ordering::Relaxed);
                memory
            }
            None => Memory::zeroed(class_bytes),
        };
        Block::pooled(memory, Arc::clone(self))
    }

    /// Bytes of free blocks kept for reuse.
    pub fn retained_bytes(&self) -> usize {
        self.retained_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn give_back(&self, memory: Memory) {
        let bytes = memory.capacity();
        let Some((class, _)) = class_of(bytes) else {
            return;
        };
        // Relaxed: an approximate bound; the queue itself orders the memory.
        if self.retained_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.retain_bytes_max
            || self
                .classes
                .get(class)
                .is_none_or(|queue| queue.push(memory).is_err())
        {
            self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("retained_bytes", &self.retained_bytes())
            .finish()
    }
}

/// Index and size of the smallest class that holds `bytes`; none if the pool does not keep such blocks.
fn class_of(bytes: usize) -> Option<(usize, usize)> {
    if !(SMALLEST_CLASS_BYTES / 2 + 1..=LARGEST_CLASS_BYTES).contains(&bytes) {
        return None;
    }
    let bytes = bytes.max(SMALLEST_CLASS_BYTES);
    let doubling = (bytes / SMALLEST_CLASS_BYTES).ilog2() as usize;
    let base = SMALLEST_CLASS_BYTES << doubling;
    let step = base / STEPS;
    let steps = (bytes - base).div_ceil(step);
    Some((doubling * STEPS + steps, base + steps * step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_is_asked_and_waste_at_most_a_fifth() {
        for bytes in (SMALLEST_CLASS_BYTES..LARGEST_CLASS_BYTES).step_by(977) {
            let (class, class_bytes) = class_of(bytes).unwrap();
            assert!(class < CLASS_COUNT);
            assert!(
                class_bytes >= bytes && (class_bytes - bytes) * 5 <= class_bytes,
                "{bytes} in {class_bytes}"
            );
            assert_eq!(
                class_of(class_bytes),
                Some((class, class_bytes)),
                "a class holds itself"
            );
        }
        assert_eq!(
            class_of(LARGEST_CLASS_BYTES).unwrap().1,
            LARGEST_CLASS_BYTES
        );
        assert_eq!(class_of(0), None);
        assert_eq!(class_of(LARGEST_CLASS_BYTES + 1), None);
    }

    #[test]
    fn recycles_within_its_bound() {
        let pool = Pool::new(100 << 10);
        let address = pool.take(50 << 10).as_ptr();
        assert!(pool.retained_bytes() >= 50 << 10);
        assert_eq!(
            pool.take(50 << 10).as_ptr(),
            address,
            "the same block again"
        );
        drop((pool.take(60 << 10), pool.take(60 << 10)));
        assert!(pool.retained_bytes() <= 100 << 10);
    }

    #[test]
    fn a_grown_block_does_not_come_back() {
        let pool = Pool::new(1 << 30);
        let mut block = pool.take(8 << 10);
        block.reserve(1 << 20);
        drop(block);
        assert_eq!(pool.retained_bytes(), 0);
    }
}
