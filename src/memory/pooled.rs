//! Blocks out of a [`Pool`], to which they return when dropped.

use std::sync::Arc;

use crate::{Block, OutOfMemory, Owner, Pool};

impl Pool {
    /// An empty block with room for at least `capacity` bytes.
    ///
    /// # Errors
    /// [`OutOfMemory`] if there is none, not even if the pool lets go of all that is free.
    pub fn try_take(self: &Arc<Pool>, capacity: usize) -> Result<Block, OutOfMemory> {
        match self.take(capacity)? {
            Some(memory) => Ok(Block::pooled(memory, Arc::clone(self), None)),
            None => match self.pinned(capacity) {
                Some(memory) => Ok(Block::of(memory)),
                None => self.or_release(|| Block::try_with_capacity(capacity)),
            },
        }
    }

    /// As [`Pool::try_take`], for `owner`: its first `capacity` bytes are zero, or were this
    /// owner's.
    pub fn try_take_for(
        self: &Arc<Pool>,
        owner: Owner,
        capacity: usize,
    ) -> Result<Block, OutOfMemory> {
        match self.take_for(owner, capacity)? {
            Some(memory) => Ok(Block::pooled(memory, Arc::clone(self), Some(owner))),
            None => match self.pinned(capacity) {
                Some(mut memory) => {
                    memory.zero(capacity);
                    Ok(Block::of(memory))
                }
                // New memory is zeroed.
                None => self.or_release(|| Block::try_with_capacity(capacity)),
            },
        }
    }

    /// As [`Pool::try_take`], but that its first `capacity` bytes are zero.
    pub fn try_take_zeroed(self: &Arc<Pool>, capacity: usize) -> Result<Block, OutOfMemory> {
        let mut block = self.try_take(capacity)?;
        block.zero(capacity);
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{AlignedMemory, MemoryKind, PinnedSource};

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

    /// Counts what it lends; its memory is not page-locked.
    struct Lender {
        lent: Arc<AtomicUsize>,
        lent_max: usize,
    }

    struct LentMemory(
        Arc<AtomicUsize>,
        #[allow(dead_code, reason = "the memory")] Block,
    );

    impl Drop for LentMemory {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl PinnedSource for Lender {
        fn memory(&self, capacity: usize) -> Option<AlignedMemory> {
            if self.lent.load(Ordering::Relaxed) == self.lent_max {
                return None;
            }
            self.lent.fetch_add(1, Ordering::Relaxed);
            let mut memory = Block::with_capacity(capacity);
            memory.spare_mut().fill(3);
            let base = NonNull::new(memory.as_mut_ptr())?;
            let owner = Box::new(LentMemory(Arc::clone(&self.lent), memory));
            // SAFETY: the owner keeps the memory, which nobody else uses.
            Some(unsafe { AlignedMemory::pinned(base, capacity, owner) })
        }
    }

    #[test]
    fn a_source_is_asked_first() {
        const BYTES: usize = 8 << 10;
        let lent = Arc::new(AtomicUsize::new(0));
        let source = Lender {
            lent: Arc::clone(&lent),
            lent_max: 2,
        };
        let pool = Pool::of_pinned(1 << 20, Box::new(source));
        let is_pinned = |block: &Block| block.place().kind == MemoryKind::CpuPinned;
        let owner = Owner::new();
        let mut first = pool.try_take_for(owner, BYTES).unwrap();
        first.advance(BYTES);
        assert_eq!(first.as_slice(), [0; BYTES], "of others before");
        first.as_mut_slice().fill(7);
        let second = pool.try_take(100).unwrap();
        assert!(is_pinned(&first) && is_pinned(&second), "of any size");
        let third = pool.try_take(BYTES).unwrap();
        assert!(!is_pinned(&third), "there is no room");
        drop((second, third));
        assert_eq!(
            pool.retained_bytes(),
            0,
            "it keeps pinned blocks of a class alone"
        );
        drop(first);
        assert_eq!(
            (pool.retained_bytes(), lent.load(Ordering::Relaxed)),
            (BYTES, 1)
        );
        let mut again = pool.try_take_for(owner, BYTES).unwrap();
        again.advance(BYTES);
        assert!(
            is_pinned(&again) && again.as_slice() == [7; BYTES],
            "its own"
        );
        again.try_reserve(1 << 20).unwrap();
        assert!(
            !is_pinned(&again) && again.as_slice() == [7; BYTES],
            "grown"
        );
        assert_eq!(lent.load(Ordering::Relaxed), 0);
        // What is kept makes room for others.
        drop((pool.try_take(BYTES), pool.try_take_for(owner, BYTES)));
        assert_eq!(lent.load(Ordering::Relaxed), 2);
        assert!(is_pinned(&pool.try_take(2 * BYTES).unwrap()));
    }
}
