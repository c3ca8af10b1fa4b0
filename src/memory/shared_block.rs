//! A small block that views share: it lies in front of its own bytes, with the count of its
//! holders.
//!
//! `Arc<Block>` is an allocation of its own, whose place in the cache is another line than that of
//! the bytes. A request has two such blocks, its body and its output; most are small.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::aligned_memory::FRONT_BYTES;
use crate::{ALIGNMENT_BYTES, Block};

/// One holder of a block. The last one that is dropped frees the block. Usable on every thread.
pub(crate) struct SharedBlock {
    front: NonNull<Front>,
}

/// What lies in front of the bytes, and dies with them.
struct Front {
    holder_count: AtomicUsize,
    block: ManuallyDrop<Block>,
}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Block>();
    assert!(size_of::<Front>() <= FRONT_BYTES && align_of::<Front>() <= ALIGNMENT_BYTES);
};

/// More holders than memory has room for: somebody forgets them.
const HOLDERS_MAX: usize = isize::MAX as usize;

// SAFETY: holders share the block, which is Sync; the last one drops it on its thread, and it is
// Send.
unsafe impl Send for SharedBlock {}
// SAFETY: as above; a reference gives the block and clones.
unsafe impl Sync for SharedBlock {}

impl SharedBlock {
    /// The first holder of `block`.
    ///
    /// # Errors
    /// The block, if its memory has no room in front of it.
    pub(crate) fn new(block: Block) -> Result<SharedBlock, Block> {
        let Some(room) = block.front() else {
            return Err(block);
        };
        let front: NonNull<Front> = room.cast();
        // SAFETY: the memory has that much room there (see the assertion), aligned as all blocks
        // are, which nobody else uses: whoever had the block gave it away.
        unsafe {
            front.write(Front {
                holder_count: AtomicUsize::new(1),
                block: ManuallyDrop::new(block),
            });
        }
        Ok(SharedBlock { front })
    }

    fn holder_count(&self) -> &AtomicUsize {
        // SAFETY: it was written in `new`, and stays until the last holder is dropped.
        unsafe { &(*self.front.as_ptr()).holder_count }
    }
}

impl Deref for SharedBlock {
    type Target = Block;

    fn deref(&self) -> &Block {
        // SAFETY: as in `holder_count`; nobody has it as mutable.
        unsafe { &(*self.front.as_ptr()).block }
    }
}

impl Clone for SharedBlock {
    fn clone(&self) -> SharedBlock {
        // Relaxed: who clones has a holder, which keeps the block meanwhile.
        if self.holder_count().fetch_add(1, Ordering::Relaxed) > HOLDERS_MAX {
            std::process::abort();
        }
        SharedBlock { front: self.front }
    }
}

impl Drop for SharedBlock {
    fn drop(&mut self) {
        // Release, and then acquire: what others did with the block comes before its end.
        if self.holder_count().fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        // SAFETY: the last holder; nobody reads it again. The block leaves its memory before it
        // frees it.
        let front = unsafe { self.front.read() };
        drop(ManuallyDrop::into_inner(front.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Charge};

    #[test]
    fn the_last_holder_frees_the_block() {
        let budget = Budget::new(1 << 20);
        let mut charge = Charge::empty(&budget);
        charge.cover(1).unwrap();
        let mut block = Block::copy_of(b"abc");
        block.set_charge(charge);
        let first = SharedBlock::new(block).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let holder = first.clone();
                std::thread::spawn(move || {
                    let again = holder.clone();
                    drop(holder);
                    assert_eq!(again.as_slice(), b"abc");
                })
            })
            .collect();
        drop(first.clone());
        assert_eq!(budget.used_bytes(), Charge::STEP_BYTES);
        drop(first);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn has_room_in_front_of_small_memory_alone() {
        let sizes = [
            (1, true),
            (2 << 10, true),
            ((2 << 10) + 1, false),
            (8 << 10, false),
        ];
        for (capacity, is_small) in sizes {
            let mut block = Block::with_capacity(capacity);
            assert_eq!(block.as_ptr() as usize % ALIGNMENT_BYTES, 0);
            block.advance(capacity);
            block.as_mut_slice().fill(7);
            match SharedBlock::new(block) {
                Ok(shared) => assert!(is_small && shared.as_slice() == vec![7; capacity]),
                Err(block) => assert!(!is_small && block.as_slice() == vec![7; capacity]),
            }
        }
        let grown = {
            let mut block = Block::copy_of(b"abc");
            block.try_reserve(1 << 12).unwrap();
            SharedBlock::new(block)
        };
        assert_eq!(grown.err().unwrap().as_slice(), b"abc");
    }
}
