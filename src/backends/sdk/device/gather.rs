//! Parts of a tensor, joined in the memory of a device.

use std::ptr;

use conch_memory::MemoryPlace;

use super::copies::CopyPlan;
use super::memory::{MemorySource, MemoryTarget};
use super::plan::Stage;
use super::stream::DeviceStream;
use super::workspace::Workspace;
use crate::Error;

/// What engines ask of addresses on devices: TensorRT wants multiples of 256, and kernels read
/// several elements at once. The driver's own allocations are multiples of it.
pub const DEVICE_ALIGNMENT: u64 = 256;

/// Memory of an instance's device in which inputs are joined, kept between batches: one for each
/// input.
pub struct DeviceGather {
    workspace: Workspace,
    place: MemoryPlace,
}

impl DeviceGather {
    pub fn new(stream: &DeviceStream) -> Self {
        let place = stream.place();
        DeviceGather {
            workspace: Workspace::new(stream.allocator.clone(), place),
            place,
        }
    }

    /// Plans to join `parts`, the pieces of an input of all requests in order, in the memory of the
    /// device: what is returned may be read on the stream of `copies` once they have run. A single
    /// part that lies on the device is used in place if its address is a multiple of
    /// [`DEVICE_ALIGNMENT`].
    ///
    /// # Errors
    /// `Unavailable` if the device has no room for them.
    pub fn plan<'a>(
        &'a mut self,
        parts: &[MemorySource<'a>],
        copies: &mut CopyPlan<'a>,
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
        let base = ptr::with_exposed_provenance_mut(self.workspace.reserve(len)? as usize);
        // SAFETY: the block is that long, and borrowed with `self`.
        let mut target = unsafe { MemoryTarget::new(base, len, self.place, c"a joined input")? };
        for part in parts {
            copies.add_to_stage(Stage::In, 0, *part, &mut target)?;
        }
        // SAFETY: as above; nobody but the copies writes there until `self` is used again.
        Ok(unsafe { MemorySource::new(base, len, self.place) })
    }
}
