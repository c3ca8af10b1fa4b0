//! Device memory that batches use one after the other.

use conch_memory::MemoryPlace;

use super::allocator::{DeviceAllocator, MemoryAllocation};
use crate::Error;

/// Memory of an instance's device for one batch at a time, kept between batches.
pub(super) struct Workspace {
    allocator: DeviceAllocator,
    place: MemoryPlace,
    block: Option<MemoryAllocation>,
}

impl Workspace {
    pub(super) fn new(allocator: DeviceAllocator, place: MemoryPlace) -> Self {
        Workspace {
            allocator,
            place,
            block: None,
        }
    }

    /// The address of room for `len` bytes. What it held is gone.
    ///
    /// # Errors
    /// `Unavailable` if the device has no room.
    pub(super) fn reserve(&mut self, len: usize) -> Result<u64, Error> {
        if len > self.block.as_ref().map_or(0, MemoryAllocation::len) {
            // First, as both may not fit.
            self.block = None;
            self.block = Some(MemoryAllocation::new(&self.allocator, self.place, len)?);
        }
        Ok(self.block.as_ref().map_or(0, MemoryAllocation::address))
    }
}
