//! Pinned memory through which bytes of pageable host memory pass to and from a device.

use super::allocator::{DeviceAllocator, MemoryAllocation};
use super::plan::PINNED;

/// A batch has no more, and no batch in flight keeps more: the server's pool of pinned memory
/// (256 MiB unless set) is shared by all instances of its GPUs. The driver stages what does not
/// fit.
pub(super) const STAGING_BYTES_MAX: usize = 16 << 20;

/// Smaller ones are not worth a second allocation when a larger batch comes.
const STAGING_BYTES_MIN: usize = 64 << 10;

/// Pinned memory for one batch at a time, kept between batches.
pub(super) struct Staging {
    allocator: DeviceAllocator,
    block: Option<MemoryAllocation>,
    /// Bytes of the block that the batch has.
    used: usize,
    /// Blocks that became too short for the batch, which still uses them.
    outgrown: Vec<MemoryAllocation>,
}

/// Staging memory of one stage of a batch; empty without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StagingBlock {
    address: u64,
    len: usize,
}

impl Staging {
    pub(super) fn new(allocator: DeviceAllocator) -> Self {
        Staging {
            allocator,
            block: None,
            used: 0,
            outgrown: Vec::new(),
        }
    }

    /// `wanted` more bytes for the batch; fewer, perhaps none, where there is no room for them.
    pub(super) fn take(&mut self, wanted: usize) -> StagingBlock {
        let outgrown: usize = self.outgrown.iter().map(MemoryAllocation::len).sum();
        let used = self.used + outgrown;
        let wanted = wanted.min(STAGING_BYTES_MAX.saturating_sub(used));
        if wanted > self.block.as_ref().map_or(0, MemoryAllocation::len) - self.used {
            // Long enough for a batch such as this.
            let len = (used + wanted).max(STAGING_BYTES_MIN).next_power_of_two();
            // Without room, and in a server without such memory, the driver stages by itself.
            if let Ok(block) = MemoryAllocation::new(&self.allocator, PINNED, len) {
                let old = self.block.replace(block);
                self.outgrown.extend(old.filter(|_| self.used > 0));
                self.used = 0;
            }
        }
        let Some(block) = &self.block else {
            return StagingBlock::default();
        };
        let address = block.address() + self.used as u64;
        let len = wanted.min(block.len() - self.used);
        self.used += len;
        StagingBlock { address, len }
    }

    /// The batch is done: its memory is the next one's.
    pub(super) fn reset(&mut self) {
        self.used = 0;
        self.outgrown.clear();
    }
}

impl StagingBlock {
    /// The address of the next `len` bytes; none if fewer are left.
    pub(super) fn take(&mut self, len: usize) -> Option<u64> {
        let rest = self.len.checked_sub(len)?;
        let address = self.address;
        (self.address, self.len) = (address + len as u64, rest);
        Some(address)
    }
}
