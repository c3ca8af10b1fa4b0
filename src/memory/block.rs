//! An owned, aligned, growable piece of host memory.
//!
//! All capacity of a block is initialised from the language's point of view: fresh memory is zeroed
//! (for large blocks the kernel's zero pages, at no cost until touched), recycled memory holds
//! earlier bytes. So the spare capacity can be handed out as `&mut [u8]` to `recv` without unsafe
//! code at the caller. Earlier bytes never become visible: only `len` bytes are readable, and
//! whoever raises `len` has written them.

use std::alloc::handle_alloc_error;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::aligned_memory::{AlignedMemory, MAPPED_FROM_BYTES};
use crate::pool::{Owner, Pool};
use crate::{Charge, MemoryKind, MemoryPlace, OutOfMemory};

/// An owned piece of host memory: `len` readable bytes of `capacity`.
pub struct Block {
    memory: Option<AlignedMemory>,
    len: usize,
    pool: Option<Arc<Pool>>,
    /// Whose bytes it may hold, in the pool as well.
    owner: Option<Owner>,
    charge: Option<Charge>,
}

impl Block {
    /// A block outside any pool with room for `capacity` bytes. Does not block.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has none.
    pub fn try_with_capacity(capacity: usize) -> Result<Block, OutOfMemory> {
        AlignedMemory::try_zeroed(capacity).map(Block::of)
    }

    pub(crate) fn of(memory: AlignedMemory) -> Block {
        Block {
            memory: Some(memory),
            len: 0,
            pool: None,
            owner: None,
            charge: None,
        }
    }

    /// As [`Block::try_with_capacity`], for capacities that are small and not for a client to
    /// choose. Ends the process if the system has no memory, as Rust's `Vec` does.
    pub fn with_capacity(capacity: usize) -> Block {
        let capacity = capacity.max(1);
        let memory = if capacity < MAPPED_FROM_BYTES {
            AlignedMemory::of_allocator(capacity)
        } else {
            AlignedMemory::try_zeroed(capacity).ok()
        };
        Block::of(memory.unwrap_or_else(|| handle_alloc_error(AlignedMemory::layout(capacity))))
    }

    /// A copy of `bytes` outside any pool.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has none.
    pub fn try_copy_of(bytes: &[u8]) -> Result<Block, OutOfMemory> {
        let mut block = Block::try_with_capacity(bytes.len())?;
        block.extend_from_slice(bytes);
        Ok(block)
    }

    /// As [`Block::try_copy_of`], for few bytes; see [`Block::with_capacity`].
    pub fn copy_of(bytes: &[u8]) -> Block {
        let mut block = Block::with_capacity(bytes.len());
        block.extend_from_slice(bytes);
        block
    }

    pub(crate) fn pooled(memory: AlignedMemory, pool: Arc<Pool>, owner: Option<Owner>) -> Block {
        Block {
            memory: Some(memory),
            len: 0,
            pool: Some(pool),
            owner,
            charge: None,
        }
    }

    fn memory(&self) -> &AlignedMemory {
        self.memory.as_ref().expect("only drop takes the memory")
    }

    pub fn capacity(&self) -> usize {
        self.memory().capacity()
    }

    /// See [`AlignedMemory::front`].
    pub(crate) fn front(&self) -> Option<NonNull<u8>> {
        self.memory().front()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ordinary or pinned host memory.
    pub fn place(&self) -> MemoryPlace {
        let kind = match self.memory().is_pinned() {
            true => MemoryKind::CpuPinned,
            false => MemoryKind::Cpu,
        };
        MemoryPlace { kind, id: 0 }
    }

    /// Makes these bytes count against a budget for as long as the block, or a view of it, lives.
    pub fn set_charge(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }

    /// Takes the charge away, to put it on another block that continues this one.
    pub fn take_charge(&mut self) -> Option<Charge> {
        self.charge.take()
    }

    pub fn charge(&self) -> Option<&Charge> {
        self.charge.as_ref()
    }

    pub fn charge_mut(&mut self) -> Option<&mut Charge> {
        self.charge.as_mut()
    }

    /// The readable bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len <= capacity` and all capacity is initialised.
        unsafe { std::slice::from_raw_parts(self.memory().as_ptr(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let (base, len) = (self.memory().as_ptr(), self.len);
        // SAFETY: as in `as_slice`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(base, len) }
    }

    /// The unused capacity, to be written before [`Block::advance`]. Its present content is
    /// meaningless.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let (base, len, capacity) = (self.memory().as_ptr(), self.len, self.capacity());
        // SAFETY: `len..capacity` lies inside the allocation, is initialised, and `&mut self`
        // excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(base.add(len), capacity - len) }
    }

    /// Overwrites the first `bytes` of its capacity.
    pub(crate) fn zero(&mut self, bytes: usize) {
        if let Some(memory) = &mut self.memory {
            memory.zero(bytes);
        }
    }

    /// Counts `bytes` of the spare capacity as written. Panics if there is less.
    pub fn advance(&mut self, bytes: usize) {
        assert!(
            bytes <= self.capacity() - self.len,
            "advance past the capacity"
        );
        self.len += bytes;
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends `bytes`. Panics if they do not fit: callers size the block first.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let spare = self.spare_mut();
        spare[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Raises the capacity to at least `capacity`; readable bytes stay. They are copied unless
    /// there is room behind a large block.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has none; the block is then as before.
    pub fn try_reserve(&mut self, capacity: usize) -> Result<(), OutOfMemory> {
        if capacity <= self.capacity() {
            return Ok(());
        }
        let used = self.len;
        let memory = self.memory.as_mut().expect("only drop takes the memory");
        let grown = memory.grow(used, capacity);
        if grown.is_err() && self.pool.as_ref().is_some_and(|pool| pool.release()) {
            memory.grow(used, capacity)?;
        } else {
            grown?;
        }
        // A block that outgrew its size class does not go back to the pool.
        self.pool = None;
        Ok(())
    }

    /// Base address, for code that hands it across the C ABI. Valid while the block lives and does
    /// not grow.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory().as_ptr()
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.base().as_ptr()
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.memory().base()
    }
}

impl From<AlignedMemory> for Block {
    /// An empty block outside any pool.
    fn from(memory: AlignedMemory) -> Block {
        Block::of(memory)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let (Some(memory), Some(pool)) = (self.memory.take(), self.pool.take()) {
            pool.recycle(memory, self.owner);
        }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ALIGNMENT_BYTES;

    #[test]
    fn grows_without_losing_bytes_small_and_mapped() {
        for (first, then) in [(1, 100), (100, 1 << 20), (1 << 17, 1 << 22)] {
            let mut block = Block::with_capacity(first);
            block.extend_from_slice(&vec![7; first]);
            block.try_reserve(then).unwrap();
            assert!(block.capacity() >= then);
            assert_eq!(block.as_slice(), vec![7; first]);
            assert_eq!(block.as_ptr() as usize % ALIGNMENT_BYTES, 0);
            assert!(block.spare_mut().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    #[should_panic(expected = "advance past the capacity")]
    fn refuses_to_advance_past_the_capacity() {
        Block::with_capacity(8).advance(9);
    }
}
