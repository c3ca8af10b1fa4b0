//! A device's memory for backends and responses: its pool first, then the driver.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_cuda::{CudaError, Device, DeviceMemory, DevicePool, PoolUsage, Stream, TransferError};
use conch_memory::{Block, ByteView, Owner};

use super::outputs::{DeviceBlock, DeviceBlocks};

/// Streams kept for single copies; more than copies at a time are rare.
const IDLE_STREAMS_MAX: usize = 8;

/// Hands out a device's memory. Usable from every thread; may block in the driver where the pool
/// has no room.
#[derive(Debug)]
pub struct GpuMemory {
    device: Arc<Device>,
    /// None if the device has no room for it, or it is to have no bytes.
    pool: Option<Arc<DevicePool>>,
    /// Parts of the pool that hold outputs.
    outputs: Option<Arc<DeviceBlocks>>,
    /// What the pool had no room for, by address.
    direct: Mutex<BTreeMap<u64, DeviceMemory>>,
    direct_bytes: AtomicU64,
    /// Streams for single copies that nobody uses now.
    streams: Mutex<Vec<Stream>>,
}

impl GpuMemory {
    pub(super) fn new(device: Arc<Device>, pool: Option<DevicePool>) -> GpuMemory {
        let pool = pool.map(Arc::new);
        GpuMemory {
            device,
            outputs: pool.as_ref().map(DeviceBlocks::new),
            pool,
            direct: Mutex::default(),
            direct_bytes: AtomicU64::new(0),
            streams: Mutex::default(),
        }
    }

    /// Appends the bytes of a view of this device's memory to `target`. Blocks for the copy alone.
    ///
    /// # Errors
    /// What the driver refuses; no room.
    pub fn read(&self, view: &ByteView, target: &mut Block) -> Result<(), TransferError> {
        self.with_stream(|stream| stream.read(view, target))
    }

    /// Copies `bytes` to the beginning of a region's view. Blocks for the copy alone.
    ///
    /// # Errors
    /// What the driver refuses; no room.
    pub fn write(&self, bytes: &[u8], target: &ByteView) -> Result<(), TransferError> {
        self.with_stream(|stream| stream.write(bytes, target))
    }

    pub(super) fn with_stream(
        &self,
        copy: impl FnOnce(&Stream) -> Result<(), TransferError>,
    ) -> Result<(), TransferError> {
        let idle = self.lock_streams().pop();
        let stream = match idle {
            Some(stream) => stream,
            None => Stream::new(&self.device, 0)?,
        };
        let outcome = copy(&stream);
        // A stream that failed is not used again.
        if outcome.is_ok() {
            let mut streams = self.lock_streams();
            if streams.len() < IDLE_STREAMS_MAX {
                streams.push(stream);
            }
        }
        outcome
    }

    fn lock_streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of `len` bytes, 256-byte aligned, with undefined content. They are the caller's
    /// until [`GpuMemory::free`].
    ///
    /// # Errors
    /// What the driver refuses after the pool had no room.
    pub fn allocate(&self, len: u64) -> Result<u64, CudaError> {
        if let Some(address) = self.allocate_pooled(len) {
            return Ok(address);
        }
        let memory = DeviceMemory::allocate(&self.device, len)?;
        let address = memory.base().0;
        self.direct_bytes.fetch_add(len, Ordering::Relaxed);
        let mut direct = self.direct.lock().unwrap_or_else(PoisonError::into_inner);
        direct.insert(address, memory);
        Ok(address)
    }

    /// Lets go of blocks that are only kept if there is no room else.
    fn allocate_pooled(&self, len: u64) -> Option<u64> {
        let pool = self.pool.as_ref()?;
        pool.allocate(len).or_else(|| {
            let has_released = self.outputs.as_ref().is_some_and(|blocks| blocks.release());
            has_released.then(|| pool.allocate(len))?
        })
    }

    /// Room of the pool for an output of the model `owner`, without bytes of other models. Blocks
    /// while the device overwrites them. None if the pool has no room, or the device fails.
    pub fn block_for(&self, owner: Owner, len: usize) -> Option<DeviceBlock> {
        let taken = self.outputs.as_ref()?.take(owner, len as u64)?;
        if taken.is_foreign {
            let filled = self.with_stream(|stream| Ok(stream.clear(taken.block.as_ref())?));
            filled.ok()?;
        }
        Some(taken.block)
    }

    /// Gives back what [`GpuMemory::allocate`] returned. Returns false for any other address.
    pub fn free(&self, address: u64) -> bool {
        if self.pool.as_ref().is_some_and(|pool| pool.free(address)) {
            return true;
        }
        let mut direct = self.direct.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(memory) = direct.remove(&address) else {
            return false;
        };
        // The driver may wait for the device: without the lock.
        drop(direct);
        self.direct_bytes.fetch_sub(memory.len(), Ordering::Relaxed);
        true
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The pool's bytes; none without a pool.
    pub fn pool_usage(&self) -> Option<PoolUsage> {
        let usage = self.pool.as_ref()?.usage();
        let kept_bytes = self
            .outputs
            .as_ref()
            .map_or(0, |blocks| blocks.kept_bytes());
        Some(PoolUsage {
            used_bytes: usage.used_bytes.saturating_sub(kept_bytes),
            ..usage
        })
    }

    /// Bytes that the driver gave because the pool had no room.
    pub fn direct_bytes(&self) -> u64 {
        self.direct_bytes.load(Ordering::Relaxed)
    }
}
