//! Reusable size-classed blocks, shared by all threads without locks.
//!
//! Classes grow by powers of two with four steps each (…, 64, 80, 96, 112, 128 KiB, …), so at most
//! a fifth of a block is unused. Blocks below [`SMALLEST_CLASS_BYTES`] go to the allocator, which
//! is faster for them; blocks above [`LARGEST_CLASS_BYTES`] are given back each time, which costs
//! less than using them. What the pool retains is bounded by `retain_bytes_max`.
//!
//! A recycled block holds earlier bytes. Who writes all that it shows may have any; what a backend
//! fills, which may leave gaps, has an *owner* (its model): its blocks come back to it alone, or
//! are zeroed for the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::OutOfMemory;
use crate::block::{AlignedMemory, Block};

const SMALLEST_CLASS_BYTES: usize = 4 << 10;
const LARGEST_CLASS_BYTES: usize = 16 << 20;
const STEPS: usize = 4;
/// log2(16 MiB / 4 KiB) doublings of four steps, and the last size itself.
const CLASS_COUNT: usize = 12 * STEPS + 1;
/// Free blocks kept per class; with 4 KiB blocks this is 1 MiB.
const FREE_BLOCKS_MAX: usize = 256;
/// The same of blocks that have an owner, all owners together.
const OWNED_BLOCKS_MAX: usize = 128;
/// So many blocks of others are passed over in search of an own one, before one of theirs is
/// zeroed: several models take turns.
const SEARCH_MAX: usize = 4;

/// Whose bytes a block may hold: a number that [`Owner::new`] gives once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    #[allow(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> Owner {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A recycler of [`Block`]s. Cheap to share; a block returns to its pool when dropped, on whatever
/// thread.
pub struct Pool {
    classes: Vec<ArrayQueue<AlignedMemory>>,
    owned: Vec<ArrayQueue<(Owner, AlignedMemory)>>,
    retained_bytes: AtomicUsize,
    retain_bytes_max: usize,
}

impl Pool {
    /// A pool that keeps at most `retain_bytes_max` bytes of free blocks.
    pub fn new(retain_bytes_max: usize) -> Arc<Pool> {
        let classes = (0..CLASS_COUNT)
            .map(|_| ArrayQueue::new(FREE_BLOCKS_MAX))
            .collect();
        let owned = (0..CLASS_COUNT)
            .map(|_| ArrayQueue::new(OWNED_BLOCKS_MAX))
            .collect();
        Arc::new(Pool {
            classes,
            owned,
            retained_bytes: AtomicUsize::new(0),
            retain_bytes_max,
        })
    }

    /// An empty block with room for at least `capacity` bytes.
    ///
    /// # Errors
    /// [`OutOfMemory`] if there is none, not even if the pool lets go of all that is free.
    pub fn try_take(self: &Arc<Pool>, capacity: usize) -> Result<Block, OutOfMemory> {
        let Some((class, class_bytes)) = class_of(capacity) else {
            return self.or_release(|| Block::try_with_capacity(capacity));
        };
        let recycled = self.classes.get(class).and_then(ArrayQueue::pop);
        let memory = match recycled {
            Some(memory) => {
                self.retained_bytes
                    .fetch_sub(memory.capacity(), Ordering::Relaxed);
                memory
            }
            None => self.or_release(|| AlignedMemory::try_zeroed(class_bytes))?,
        };
        Ok(Block::pooled(memory, Arc::clone(self), None))
    }

    /// As [`Pool::try_take`], for `owner`: its first `capacity` bytes are zero, or were this
    /// owner's.
    pub fn try_take_for(
        self: &Arc<Pool>,
        owner: Owner,
        capacity: usize,
    ) -> Result<Block, OutOfMemory> {
        let Some((class, class_bytes)) = class_of(capacity) else {
            // New memory is zeroed.
            return self.or_release(|| Block::try_with_capacity(capacity));
        };
        let memory = match self.find(class, owner) {
            Some((previous, mut memory)) => {
                self.retained_bytes
                    .fetch_sub(memory.capacity(), Ordering::Relaxed);
                if previous != owner {
                    memory.zero(capacity);
                }
                memory
            }
            None => self.or_release(|| AlignedMemory::try_zeroed(class_bytes))?,
        };
        Ok(Block::pooled(memory, Arc::clone(self), Some(owner)))
    }

    /// As [`Pool::try_take`], but that its first `capacity` bytes are zero.
    pub fn try_take_zeroed(self: &Arc<Pool>, capacity: usize) -> Result<Block, OutOfMemory> {
        let mut block = self.try_take(capacity)?;
        block.zero(capacity);
        Ok(block)
    }

    /// A second attempt, after letting go of what is free, if the first one finds no memory.
    fn or_release<T>(
        &self,
        attempt: impl Fn() -> Result<T, OutOfMemory>,
    ) -> Result<T, OutOfMemory> {
        attempt().or_else(|refused| {
            if self.release() {
                attempt()
            } else {
                Err(refused)
            }
        })
    }

    /// Lets go of all free blocks; says whether there were any.
    #[cold]
    pub(crate) fn release(&self) -> bool {
        let mut has_released = false;
        let mut released = |memory: AlignedMemory| {
            self.retained_bytes
                .fetch_sub(memory.capacity(), Ordering::Relaxed);
            has_released = true;
        };
        // Each queue once round at the most: others give back meanwhile.
        for queue in &self.classes {
            (0..queue.capacity())
                .map_while(|_| queue.pop())
                .for_each(&mut released);
        }
        for queue in &self.owned {
            (0..queue.capacity())
                .map_while(|_| queue.pop())
                .for_each(|(_, memory)| released(memory));
        }
        has_released
    }

    /// A free block of `owner`, or another's.
    fn find(&self, class: usize, owner: Owner) -> Option<(Owner, AlignedMemory)> {
        let queue = self.owned.get(class)?;
        let mut found = queue.pop()?;
        for _ in 1..SEARCH_MAX {
            if found.0 == owner {
                break;
            }
            let Some(next) = queue.pop() else { break };
            let passed_over = std::mem::replace(&mut found, next);
            if let Err((_, memory)) = queue.push(passed_over) {
                // Others have filled its place meanwhile.
                self.retained_bytes
                    .fetch_sub(memory.capacity(), Ordering::Relaxed);
            }
        }
        Some(found)
    }

    /// Bytes of free blocks kept for reuse.
    pub fn retained_bytes(&self) -> usize {
        self.retained_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn give_back(&self, memory: AlignedMemory, owner: Option<Owner>) {
        let bytes = memory.capacity();
        let Some((class, _)) = class_of(bytes) else {
            return;
        };
        // Relaxed: an approximate bound; the queue itself orders the memory.
        if self.retained_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.retain_bytes_max
            || !self.keep(class, memory, owner)
        {
            self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn keep(&self, class: usize, memory: AlignedMemory, owner: Option<Owner>) -> bool {
        let kept = match owner {
            None => self
                .classes
                .get(class)
                .map(|queue| queue.push(memory).is_ok()),
            Some(owner) => {
                let queue = self.owned.get(class);
                queue.map(|queue| queue.push((owner, memory)).is_ok())
            }
        };
        kept == Some(true)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("retained_bytes", &self.retained_bytes())
            .finish()
    }
}

/// Index and size of the smallest class that holds `bytes`; none if the pool does not keep such
/// blocks.
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
        let address = pool.try_take(50 << 10).unwrap().as_ptr();
        assert!(pool.retained_bytes() >= 50 << 10);
        assert_eq!(
            pool.try_take(50 << 10).unwrap().as_ptr(),
            address,
            "the same block again"
        );
        drop((
            pool.try_take(60 << 10).unwrap(),
            pool.try_take(60 << 10).unwrap(),
        ));
        assert!(pool.retained_bytes() <= 100 << 10);
    }

    #[test]
    fn a_grown_block_does_not_come_back() {
        let pool = Pool::new(1 << 30);
        let mut block = pool.try_take(8 << 10).unwrap();
        block.try_reserve(1 << 20).unwrap();
        drop(block);
        assert_eq!(pool.retained_bytes(), 0);
    }

    #[test]
    fn an_owners_bytes_are_seen_by_nobody_else() {
        const BYTES: usize = 8 << 10;
        let pool = Pool::new(1 << 30);
        let (first, second) = (Owner::new(), Owner::new());
        let fill = |mut block: Block, byte: u8| {
            block.advance(BYTES);
            block.as_mut_slice().fill(byte);
            block.as_ptr()
        };
        let bytes_of = |mut block: Block| {
            block.advance(BYTES);
            block.as_slice().to_vec()
        };
        let address = fill(pool.try_take_for(first, BYTES).unwrap(), 7);
        let own = pool.try_take_for(first, BYTES).unwrap();
        assert_eq!(own.as_ptr(), address, "its own block");
        assert_eq!(bytes_of(own), [7; BYTES], "as it was");
        assert_ne!(
            pool.try_take(BYTES).unwrap().as_ptr(),
            address,
            "not for just anybody"
        );
        let others = pool.try_take_for(second, BYTES).unwrap();
        assert_eq!(others.as_ptr(), address, "another's, rather than a new one");
        assert_eq!(bytes_of(others), [0; BYTES]);
        // Among blocks of several owners each finds its own.
        let blocks: Vec<Block> = [first, second, first, second]
            .map(|owner| pool.try_take_for(owner, BYTES).unwrap())
            .into();
        blocks.into_iter().for_each(|block| {
            fill(block, 9);
        });
        for owner in [second, second, first, first] {
            let block = pool.try_take_for(owner, BYTES).unwrap();
            assert_eq!(bytes_of(block), [9; BYTES]);
        }
        // What shards wrote reaches no owner, and can be had zeroed.
        fill(pool.try_take(BYTES).unwrap(), 5);
        let stranger = bytes_of(pool.try_take_for(Owner::new(), BYTES).unwrap());
        assert_eq!(stranger, [0; BYTES]);
        assert_eq!(bytes_of(pool.try_take_zeroed(BYTES).unwrap()), [0; BYTES]);
        drop(pool.try_take_for(first, 1 << 30).unwrap());
        assert!(pool.retained_bytes() < 1 << 20);
    }

    #[test]
    fn what_is_free_is_let_go_when_there_is_no_memory() {
        let pool = Pool::new(1 << 30);
        let owner = Owner::new();
        drop((pool.try_take(1 << 20), pool.try_take_for(owner, 1 << 20)));
        assert_eq!(pool.retained_bytes(), 2 << 20);
        assert!(pool.try_take(isize::MAX as usize / 2).is_err());
        assert_eq!(pool.retained_bytes(), 0);
        assert!(pool.try_take_for(owner, usize::MAX).is_err());
        assert!(pool.try_take(1 << 20).is_ok());
    }
}
