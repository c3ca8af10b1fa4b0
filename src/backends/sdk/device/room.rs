//! Memory for the batches of a slot, one after the other.

use conch_memory::MemoryPlace;

use super::allocator::{Allocated, DeviceAllocator};
use super::staging::{Staging, StagingBlock};
use super::stream::DeviceStream;
use crate::Error;

/// Memory that a slot keeps between batches.
pub(super) struct Room {
    allocator: DeviceAllocator,
    place: MemoryPlace,
    block: Option<Allocated>,
    staging: Staging,
}

impl Room {
    pub(super) fn new(stream: &DeviceStream) -> Self {
        Room {
            allocator: stream.allocator.clone(),
            place: stream.place(),
            block: None,
            staging: Staging::new(stream.allocator.clone()),
        }
    }

    /// The address of room for `len` bytes. What it held is gone.
    pub(super) fn reserve(&mut self, len: usize) -> Result<u64, Error> {
        if len > self.block.as_ref().map_or(0, Allocated::len) {
            // First, as both may not fit.
            self.block = None;
            self.block = Some(Allocated::new(&self.allocator, self.place, len)?);
        }
        Ok(self.block.as_ref().map_or(0, Allocated::address))
    }

    pub(super) fn staging(&mut self, wanted: usize) -> StagingBlock {
        self.staging.reserve(wanted)
    }
}
