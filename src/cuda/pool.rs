//! Pools: one block of memory, given out in parts without asking the driver.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use conch_memory::{FreeRanges, class_bytes};

use crate::{DeviceMemory, PinnedMemory};

/// Memory that a pool can give out.
pub trait PoolMemory {
    /// Where it begins: an address of the CPU's or of a device.
    fn address(&self) -> u64;
    fn byte_size(&self) -> u64;
}

impl PoolMemory for DeviceMemory {
    fn address(&self) -> u64 {
        self.base().0
    }

    fn byte_size(&self) -> u64 {
        self.len()
    }
}

impl PoolMemory for PinnedMemory {
    fn address(&self) -> u64 {
        self.base().as_ptr().addr() as u64
    }

    fn byte_size(&self) -> u64 {
        self.len() as u64
    }
}

/// The device memory of `--cuda-memory-pool-byte-size`.
pub type DevicePool = MemoryPool<DeviceMemory>;
/// The pinned memory of `--pinned-memory-pool-byte-size`.
pub type PinnedPool = MemoryPool<PinnedMemory>;

/// Gives out parts of one block, in size classes. Usable from every thread; a lock is held for a
/// search in a tree, never while the driver is called.
#[derive(Debug)]
pub struct MemoryPool<M> {
    memory: M,
    ranges: Mutex<FreeRanges>,
    used_bytes: AtomicU64,
}

/// Bytes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    pub total_bytes: u64,
    pub used_bytes: u64,
}

impl<M: PoolMemory> MemoryPool<M> {
    pub fn new(memory: M) -> MemoryPool<M> {
        MemoryPool {
            ranges: Mutex::new(FreeRanges::new(memory.byte_size())),
            memory,
            used_bytes: AtomicU64::new(0),
        }
    }

    /// The block that parts are given out of.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    pub fn usage(&self) -> PoolUsage {
        PoolUsage {
            total_bytes: self.memory.byte_size(),
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
        }
    }

    /// The address of a part of `len` bytes, or none if there is no room. It is the caller's until
    /// [`MemoryPool::free`].
    pub fn allocate(&self, len: u64) -> Option<u64> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = ranges.take(len)?;
        self.used_bytes
            .store(ranges.used_bytes(), Ordering::Relaxed);
        Some(self.memory.address() + offset)
    }

    /// Gives back the part at `address`. Returns false if the pool has none there.
    pub fn free(&self, address: u64) -> bool {
        let Some(offset) = address.checked_sub(self.memory.address()) else {
            return false;
        };
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let was_taken = ranges.give_back(offset);
        self.used_bytes
            .store(ranges.used_bytes(), Ordering::Relaxed);
        was_taken
    }

    /// A part of at least `len` bytes that comes back when dropped, or none if there is no room.
    pub fn block(self: &Arc<Self>, len: u64) -> Option<PoolBlock<M>> {
        Some(PoolBlock {
            address: self.allocate(len)?,
            len: class_bytes(len)?,
            pool: Arc::clone(self),
        })
    }
}

/// A part of a pool; it goes back when dropped.
#[derive(Debug)]
pub struct PoolBlock<M: PoolMemory> {
    pool: Arc<MemoryPool<M>>,
    address: u64,
    len: u64,
}

impl<M: PoolMemory> PoolBlock<M> {
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn pool(&self) -> &Arc<MemoryPool<M>> {
        &self.pool
    }
}

impl<M: PoolMemory> Drop for PoolBlock<M> {
    fn drop(&mut self) {
        let was_taken = self.pool.free(self.address);
        debug_assert!(was_taken, "a part of a pool comes back once");
    }
}
