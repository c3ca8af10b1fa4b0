//! Memory of an instance's device that it keeps.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use conch_cuda::{Device, DeviceAddress};
use conch_memory::MemoryPlace;

use super::allocator::{DeviceAllocator, MemoryAllocation};
use super::memory::{MemorySource, MemoryTarget};
use super::refusal::refusal;
use super::stream::{DeviceStream, StreamHandle};
use crate::Error;

/// Where blocks of an instance's device come from.
#[derive(Clone)]
pub struct DeviceBlocks {
    source: Source,
    place: MemoryPlace,
}

#[derive(Clone)]
enum Source {
    Server(DeviceAllocator),
    Driver(Arc<Device>),
}

impl DeviceBlocks {
    /// Blocks of the server's memory manager.
    pub fn of(stream: &DeviceStream) -> Self {
        DeviceBlocks {
            source: Source::Server(stream.allocator.clone()),
            place: stream.place(),
        }
    }

    /// Blocks of the driver's own, for what is large and stays: they take nothing of the server's
    /// pool.
    pub fn of_driver(stream: &StreamHandle) -> Self {
        DeviceBlocks {
            source: Source::Driver(Arc::clone(stream.stream().device())),
            place: stream.place(),
        }
    }

    /// # Errors
    /// `Unavailable` if the device has no room.
    pub fn allocate(&self, len: usize) -> Result<DeviceBlock, Error> {
        let room = len.max(1);
        let memory = match &self.source {
            Source::Server(allocator) => MemoryAllocation::new(allocator, self.place, room)?,
            Source::Driver(device) => MemoryAllocation::of_driver(device, room)?,
        };
        Ok(DeviceBlock {
            memory,
            len,
            place: self.place,
        })
    }

    /// A block of zeros, which `stream` writes. Blocks until they are there.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate); `Internal` for what else the driver refuses.
    pub fn zeroed(&self, stream: &StreamHandle, len: usize) -> Result<DeviceBlock, Error> {
        let block = self.allocate(len)?;
        let at = DeviceAddress(block.address());
        // SAFETY: fresh memory of that length, which lives until the stream was waited for.
        unsafe { stream.stream().fill(at, 0, len) }
            .map_err(|error| refusal(stream.stream().device(), &error))?;
        stream.synchronize()?;
        Ok(block)
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
    memory: MemoryAllocation,
    len: usize,
    place: MemoryPlace,
}

impl DeviceBlock {
    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of a range.
    ///
    /// # Errors
    /// `Internal` if it does not lie inside.
    pub(super) fn range(&self, start: usize, len: usize) -> Result<u64, Error> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.address() + start as u64),
            _ => {
                let room = self.len;
                let text = format!("{len} bytes from {start} on are not in {room}");
                Err(Error::internal(text))
            }
        }
    }

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
