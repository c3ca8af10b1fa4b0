//! Pinned memory through which bytes of pageable host memory pass to and from a device.

use super::allocator::{Allocated, DeviceAllocator};
use super::plan::PINNED;

/// An instance keeps no more: the server's pool of pinned memory (256 MiB unless set) is shared by
/// all instances of its GPUs. What does not fit is staged by the driver.
pub(super) const STAGING_BYTES_MAX: usize = 16 << 20;

/// Smaller ones are not worth a second allocation when a larger batch comes.
const STAGING_BYTES_MIN: usize = 64 << 10;

/// Pinned memory that an instance keeps between batches.
pub(super) struct Staging {
    allocator: DeviceAllocator,
    block: Option<Allocated>,
}

/// The staging memory of one batch; empty without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StagingBlock {
    pub(super) address: u64,
    pub(super) len: usize,
}

impl Staging {
    pub(super) fn new(allocator: DeviceAllocator) -> Self {
        Staging {
            allocator,
            block: None,
        }
    }

    /// A block for `wanted` bytes, which may be shorter. No copy may use the one given before.
    pub(super) fn reserve(&mut self, wanted: usize) -> StagingBlock {
        let wanted = wanted.min(STAGING_BYTES_MAX);
        if wanted > self.block.as_ref().map_or(0, Allocated::len) {
            let len = wanted.max(STAGING_BYTES_MIN).next_power_of_two();
            // Without room, and in a server without such memory, the driver stages by itself.
            if let Ok(block) = Allocated::new(&self.allocator, PINNED, len) {
                self.block = Some(block);
            }
        }
        let block = self.block.as_ref();
        block.map_or(StagingBlock::default(), |block| StagingBlock {
            address: block.address(),
            len: block.len(),
        })
    }
}
