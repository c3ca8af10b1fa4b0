//! Memory of an instance's device that it keeps.

use std::ffi::c_void;
use std::ptr;

use conch_memory::MemoryPlace;

use super::allocator::{Allocated, DeviceAllocator};
use super::memory::{MemorySource, MemoryTarget};
use super::stream::{DeviceStream, StreamHandle};
use crate::Error;

/// Where blocks of an instance's device come from: the server's memory manager.
#[derive(Clone)]
pub struct DeviceBlocks {
    allocator: DeviceAllocator,
    place: MemoryPlace,
}

impl DeviceBlocks {
    pub fn of(stream: &DeviceStream) -> Self {
        DeviceBlocks {
            allocator: stream.allocator.clone(),
            place: stream.place(),
        }
    }

    /// # Errors
    /// `Unavailable` if the device has no room.
    pub fn allocate(&self, len: usize) -> Result<DeviceBlock, Error> {
        Ok(DeviceBlock {
            memory: Allocated::new(&self.allocator, self.place, len.max(1))?,
            len,
            place: self.place,
        })
    }
}

impl std::fmt::Debug for DeviceBlocks {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("DeviceBlocks")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// Memory of a device, which stays where it is until it is dropped. Its address is a multiple of
/// [`DEVICE_ALIGNMENT`](crate::DEVICE_ALIGNMENT).
pub struct DeviceBlock {
    memory: Allocated,
    len: usize,
    place: MemoryPlace,
}

impl DeviceBlock {
    /// All of it, for an engine that reads it.
    pub fn source(&self) -> MemorySource<'_> {
        let base: *const c_void = ptr::with_exposed_provenance(self.memory.address() as usize);
        // SAFETY: the block is that long, and borrowed.
        unsafe { MemorySource::new(base, self.len, self.place) }
    }

    /// All of it, for an engine that writes it.
    ///
    /// # Errors
    /// `Internal` if the server gave none.
    pub fn target(&mut self) -> Result<MemoryTarget<'_>, Error> {
        let base = ptr::with_exposed_provenance_mut(self.memory.address() as usize);
        // SAFETY: the block is that long, and borrowed for good.
        unsafe { MemoryTarget::new(base, self.len, self.place, c"a block of a device") }
    }

    /// Enqueues a copy of `source`, on the same device, to the front of the block.
    ///
    /// # Errors
    /// `Internal` if it is longer, or for what the driver refuses.
    ///
    /// # Safety
    /// Both stay as they are until `stream` has got there.
    pub unsafe fn fill(
        &mut self,
        stream: &StreamHandle,
        source: MemorySource<'_>,
    ) -> Result<(), Error> {
        if source.len() > self.len {
            return Err(Error::internal("a block of a device is too short"));
        }
        // SAFETY: both are that long, and stay so by this function's contract.
        unsafe { stream.copy(self.memory.address(), source.address(), source.len()) }
    }
}
