//! Parts of pools as memory of blocks, and as views, for tensors.

use std::ptr::NonNull;
use std::sync::Arc;

use conch_memory::{AlignedMemory, ByteView, MemoryKind, MemoryPlace};

use crate::{CudaError, DeviceAddress, DeviceMemory, PinnedMemory, PoolBlock, Stream};

impl PoolBlock<PinnedMemory> {
    /// The first `capacity` bytes of the part for a block, which gives it back when dropped and
    /// drops `keeper` after that. None if it has fewer.
    pub fn into_memory<K>(self, capacity: usize, keeper: K) -> Option<AlignedMemory>
    where
        K: Send + Sync + 'static,
    {
        let address = usize::try_from(self.address()).ok()?;
        if self.len() < capacity as u64 {
            return None;
        }
        let base = self.pool().memory().base();
        let base = base.as_ptr().with_addr(address);
        let base = NonNull::new(base)?;
        // SAFETY: the part lies in memory that the driver gave out zeroed, it is nobody else's
        // while `self` lives, and parts are aligned to 256 bytes.
        Some(unsafe { AlignedMemory::pinned(base, capacity, Box::new((self, keeper))) })
    }
}

impl PoolBlock<DeviceMemory> {
    /// The first `len` bytes, or all if there are fewer, which `owner` keeps.
    pub fn view<K: AsRef<PoolBlock<DeviceMemory>> + Send + Sync + 'static>(
        owner: Arc<K>,
        len: usize,
    ) -> ByteView {
        let part = owner.as_ref().as_ref();
        let device = part.pool().memory().device();
        let place = MemoryPlace {
            kind: MemoryKind::Gpu,
            id: i64::from(device.ordinal()),
        };
        let len = len.min(usize::try_from(part.len()).unwrap_or(usize::MAX));
        let address = usize::try_from(part.address()).unwrap_or_default();
        let base = std::ptr::without_provenance(address);
        // SAFETY: the part is the owner's, who is kept; nobody writes to what is a view.
        unsafe { ByteView::foreign(base, len, place, Some(owner)) }
    }
}

impl Stream {
    /// Overwrites a part of a pool with zeros. Blocks until that is done; waits for this stream
    /// alone.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn clear(&self, part: &PoolBlock<DeviceMemory>) -> Result<(), CudaError> {
        let len = usize::try_from(part.len()).unwrap_or(usize::MAX);
        // SAFETY: the part is the caller's, who keeps it until the wait is over.
        unsafe { self.fill(DeviceAddress(part.address()), 0, len) }?;
        self.synchronize()
    }
}
