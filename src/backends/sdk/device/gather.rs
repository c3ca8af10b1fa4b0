//! Parts of a tensor, joined in the memory of a device.

use std::ffi::c_void;
use std::ptr;

use conch_memory::MemoryPlace;

use super::allocator::{Allocated, DeviceAllocator};
use super::copies::Copies;
use super::memory::{MemorySource, MemoryTarget};
use super::stream::DeviceStream;
use crate::Error;

/// What engines ask of addresses on devices: TensorRT wants multiples of 256, and kernels read
/// several elements at once. The driver's own allocations are multiples of it.
pub const DEVICE_ALIGNMENT: u64 = 256;

/// Memory of an instance's device in which inputs are joined, kept between batches: one for each
/// input.
pub struct DeviceGather {
    allocator: DeviceAllocator,
    place: MemoryPlace,
    block: Option<Allocated>,
}

impl DeviceGather {
    pub fn new(stream: &DeviceStream) -> Self {
        DeviceGather {
            allocator: stream.allocator.clone(),
            place: stream.place(),
            block: None,
        }
    }

    /// Joins `parts`, the pieces of an input of all requests in order, in the memory of the
    /// device of `stream`. A single part that lies there is used in place; else all are copied by
    /// `stream`, and there when this returns. Blocks until then.
    ///
    /// # Errors
    /// `Unavailable` if the device has no room for them; `Internal` for what the driver refuses.
    pub fn join<'a>(
        &'a mut self,
        stream: &mut DeviceStream,
        parts: &[MemorySource<'a>],
    ) -> Result<MemorySource<'a>, Error> {
        if let [part] = parts
            && part.place() == self.place
        {
            return Ok(*part);
        }
        let sum = parts
            .iter()
            .try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
        let len = sum.ok_or_else(|| Error::internal("batch larger than memory"))?;
        let base = self.reserve(len)?;
        // SAFETY: the block is that long, and borrowed with `self`.
        let mut target = unsafe { MemoryTarget::new(base, len, self.place, c"a joined input")? };
        let mut copies = stream.copies();
        for part in parts {
            copies.add(0, *part, &mut target)?;
        }
        if let Some((_, error)) = copies.run().pop() {
            return Err(error);
        }
        // SAFETY: as above; nobody writes there until `self` is used again.
        Ok(unsafe { MemorySource::new(base, len, self.place) })
    }

    /// As [`join`](Self::join), with the copies of a batch: what is returned may be read on the
    /// stream of `copies` once they have run. A part that lies on the device is used in place if
    /// its address is a multiple of [`DEVICE_ALIGNMENT`].
    ///
    /// # Errors
    /// `Unavailable` if the device has no room for them.
    pub fn plan<'a>(
        &'a mut self,
        parts: &[MemorySource<'a>],
        copies: &mut Copies<'a>,
    ) -> Result<MemorySource<'a>, Error> {
        if let [part] = parts
            && part.place() == self.place
            && part.address().is_multiple_of(DEVICE_ALIGNMENT)
        {
            return Ok(*part);
        }
        let sum = parts
            .iter()
            .try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
        let len = sum.ok_or_else(|| Error::internal("batch larger than memory"))?;
        let base = self.reserve(len)?;
        // SAFETY: the block is that long, and borrowed with `self`.
        let mut target = unsafe { MemoryTarget::new(base, len, self.place, c"a joined input")? };
        for part in parts {
            copies.add(0, *part, &mut target)?;
        }
        // SAFETY: as above; nobody but the copies writes there until `self` is used again.
        Ok(unsafe { MemorySource::new(base, len, self.place) })
    }

    /// The address of room for `len` bytes. What it held is gone.
    fn reserve(&mut self, len: usize) -> Result<*mut c_void, Error> {
        if len > self.block.as_ref().map_or(0, Allocated::len) {
            // First, as both may not fit.
            self.block = None;
            self.block = Some(Allocated::new(&self.allocator, self.place, len)?);
        }
        let address = self.block.as_ref().map_or(0, Allocated::address);
        Ok(ptr::with_exposed_provenance_mut(address as usize))
    }
}
