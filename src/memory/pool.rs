//! Reusable size-classed blocks, shared by all threads; nobody waits for another.
//!
//! Classes grow by powers of two with four steps each (…, 64, 80, 96, 112, 128 KiB, …), so at most
//! a fifth of a block is unused. Blocks below [`SMALLEST_CLASS_BYTES`] go to the allocator, which
//! is faster for them; blocks above [`LARGEST_CLASS_BYTES`] are given back each time: their huge
//! pages cost less than their use. What the pool retains is bounded by `retain_bytes_max`.
//!
//! A recycled block holds earlier bytes. Who writes all that it shows may have any; what a backend
//! fills, which may leave gaps, has an *owner* (its model): its blocks come back to it alone, or
//! are zeroed for the next one.
//!
//! A pool of pinned memory has a [`PinnedSource`]. Where that has no room, blocks are of ordinary
//! memory, and the pool does not keep them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::OutOfMemory;
use crate::aligned_memory::AlignedMemory;
use crate::free_list::FreeList;

const SMALLEST_CLASS_BYTES: usize = 4 << 10;
const LARGEST_CLASS_BYTES: usize = 16 << 20;
const STEPS: usize = 4;
/// log2(16 MiB / 4 KiB) doublings of four steps, and the last size itself.
const CLASS_COUNT: usize = 12 * STEPS + 1;
/// Free blocks kept per class; with 4 KiB blocks this is 1 MiB.
const FREE_BLOCKS_MAX: usize = 256;
/// The same of blocks that have an owner, all owners together.
const OWNED_BLOCKS_MAX: usize = 128;

/// What a pool keeps although it is not needed, as a part of what it may keep.
const UNTRIMMED_PART: usize = 8;

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

/// Where a pool gets pinned memory from.
pub trait PinnedSource: Send + Sync {
    /// Pinned memory with this capacity; none if there is no room. Does not block.
    fn memory(&self, capacity: usize) -> Option<AlignedMemory>;
}

/// A recycler of blocks. Cheap to share; a block returns to its pool when dropped, on whatever
/// thread.
pub struct Pool {
    classes: [FreeList<AlignedMemory>; CLASS_COUNT],
    owned: [FreeList<(Owner, AlignedMemory)>; CLASS_COUNT],
    retained_bytes: AtomicUsize,
    retain_bytes_max: usize,
    /// None: its memory is ordinary.
    source: Option<Box<dyn PinnedSource>>,
}

impl Pool {
    /// A pool that keeps at most `retain_bytes_max` bytes of free blocks.
    pub fn new(retain_bytes_max: usize) -> Arc<Pool> {
        Pool::with(retain_bytes_max, None)
    }

    /// As [`Pool::new`], of pinned memory as long as `source` has room.
    pub fn of_pinned(retain_bytes_max: usize, source: Box<dyn PinnedSource>) -> Arc<Pool> {
        Pool::with(retain_bytes_max, Some(source))
    }

    fn with(retain_bytes_max: usize, source: Option<Box<dyn PinnedSource>>) -> Arc<Pool> {
        Arc::new(Pool {
            classes: std::array::from_fn(|_| FreeList::new(FREE_BLOCKS_MAX)),
            owned: std::array::from_fn(|_| FreeList::new(OWNED_BLOCKS_MAX)),
            retained_bytes: AtomicUsize::new(0),
            retain_bytes_max,
            source,
        })
    }

    /// Memory of the class of `capacity`, whose bytes may be anybody's; none if the pool keeps no
    /// such blocks.
    ///
    /// # Errors
    /// [`OutOfMemory`] if there is none, not even if the pool lets go of all that is free.
    pub(crate) fn take(&self, capacity: usize) -> Result<Option<AlignedMemory>, OutOfMemory> {
        let Some((class, class_bytes)) = class_of(capacity) else {
            return Ok(None);
        };
        let recycled = self.classes.get(class).and_then(FreeList::pop);
        let memory = match recycled {
            Some(memory) => {
                self.retained_bytes
                    .fetch_sub(memory.capacity(), Ordering::Relaxed);
                memory
            }
            None => self.fresh(class_bytes)?,
        };
        Ok(Some(memory))
    }

    /// As [`Pool::take`], for `owner`: its first `capacity` bytes are zero, or were this owner's.
    pub(crate) fn take_for(
        &self,
        owner: Owner,
        capacity: usize,
    ) -> Result<Option<AlignedMemory>, OutOfMemory> {
        let Some((class, class_bytes)) = class_of(capacity) else {
            return Ok(None);
        };
        let list = self.owned.get(class);
        let found = list.and_then(|list| list.pop_wanted(|(previous, _)| *previous == owner));
        let memory = match found {
            Some((previous, mut memory)) => {
                self.retained_bytes
                    .fetch_sub(memory.capacity(), Ordering::Relaxed);
                if previous != owner {
                    memory.zero(capacity);
                }
                memory
            }
            None => {
                let mut memory = self.fresh(class_bytes)?;
                // Others had it before.
                if memory.is_pinned() {
                    memory.zero(capacity);
                }
                memory
            }
        };
        Ok(Some(memory))
    }

    /// Memory that the pool did not have.
    fn fresh(&self, class_bytes: usize) -> Result<AlignedMemory, OutOfMemory> {
        if let Some(memory) = self.pinned(class_bytes) {
            return Ok(memory);
        }
        self.or_release(|| AlignedMemory::try_zeroed(class_bytes))
    }

    /// Memory of the pool's source; its bytes may be anybody's.
    pub(crate) fn pinned(&self, capacity: usize) -> Option<AlignedMemory> {
        let source = self.source.as_ref()?;
        source
            .memory(capacity)
            .or_else(|| self.release().then(|| source.memory(capacity))?)
    }

    /// A second attempt, after letting go of what is free, if the first one finds no memory.
    pub(crate) fn or_release<T>(
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
    pub fn release(&self) -> bool {
        let mut has_released = false;
        let mut released = |memory: AlignedMemory| {
            self.retained_bytes
                .fetch_sub(memory.capacity(), Ordering::Relaxed);
            has_released = true;
        };
        for list in &self.classes {
            list.drain().for_each(&mut released);
        }
        for list in &self.owned {
            list.drain().for_each(|(_, memory)| released(memory));
        }
        has_released
    }

    /// Notes what is free. To be called about once per second, by one thread: so
    /// [`Pool::trim`] knows what was not needed.
    pub fn note_free(&self) {
        self.classes.iter().for_each(FreeList::note_free);
        self.owned.iter().for_each(FreeList::note_free);
    }

    /// Lets go of half of the blocks that were free at every look since it last did, as long as the
    /// pool keeps more than an eighth of what it may: what a busy moment needed does not stay
    /// for ever. Some microseconds per MiB. Pinned memory stays, as the system would not get it.
    pub fn trim(&self) {
        if self.source.is_some() {
            return;
        }
        let kept_bytes = self.retain_bytes_max / UNTRIMMED_PART;
        if self.retained_bytes() <= kept_bytes {
            return;
        }
        for (anybodys, owned) in self.classes.iter().zip(&self.owned) {
            let owned = owned.take_unused().map(|(_, memory)| memory);
            for memory in anybodys.take_unused().chain(owned) {
                let bytes = memory.capacity();
                if self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed) <= kept_bytes + bytes {
                    return;
                }
            }
        }
    }

    /// Bytes of free blocks kept for reuse.
    pub fn retained_bytes(&self) -> usize {
        self.retained_bytes.load(Ordering::Relaxed)
    }

    /// Keeps memory that is not used any more for the next block, or frees it.
    pub(crate) fn recycle(&self, memory: AlignedMemory, owner: Option<Owner>) {
        let bytes = memory.capacity();
        let Some((class, _)) = class_of(bytes) else {
            return;
        };
        // What its source had no room for is freed.
        if self.source.is_some() && !memory.is_pinned() {
            return;
        }
        // Relaxed: an approximate bound; the list itself orders the memory.
        if self.retained_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.retain_bytes_max
            || !self.push_free(class, memory, owner)
        {
            self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn push_free(&self, class: usize, memory: AlignedMemory, owner: Option<Owner>) -> bool {
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
    fn what_was_not_needed_goes_down_to_an_eighth() {
        let pool = Pool::new(8 << 20);
        let owner = Owner::new();
        let taken: Vec<_> = (0..6)
            .flat_map(|_| {
                let anybodys = pool.take(512 << 10).unwrap().unwrap();
                let owned = pool.take_for(owner, 512 << 10).unwrap().unwrap();
                [(anybodys, None), (owned, Some(owner))]
            })
            .collect();
        for (memory, owner) in taken {
            pool.recycle(memory, owner);
        }
        assert_eq!(pool.retained_bytes(), 6 << 20);
        pool.trim();
        assert_eq!(pool.retained_bytes(), 6 << 20, "nobody has looked");
        let kept = [(); 5].map(|()| {
            pool.note_free();
            pool.trim();
            pool.retained_bytes() >> 10
        });
        assert_eq!(kept, [3 << 10, 1 << 10, 1 << 10, 1 << 10, 1 << 10]);
    }
}
