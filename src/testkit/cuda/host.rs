//! Host memory that the driver pinned: its own and what callers registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::code::{
    Code, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY,
};

/// Host memory that the driver handed out.
pub struct Block {
    pub address: usize,
    len: usize,
}

impl Block {
    pub fn create(len: usize) -> Result<Block, Code> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        Ok(Block {
            address: start as usize,
            len,
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; copies that use it hold a reference.
        unsafe { libc::munmap(self.address as *mut libc::c_void, self.len) };
    }
}

pub struct Range {
    pub len: usize,
    /// Ordinal of the device whose context pinned it.
    pub device: usize,
    /// Absent for memory that the caller registered.
    pub block: Option<Arc<Block>>,
}

#[derive(Default)]
pub struct Pinned {
    pub ranges: BTreeMap<usize, Range>,
}

impl Pinned {
    pub fn add_block(&mut self, block: Block, device: usize) -> usize {
        let address = block.address;
        let range = Range {
            len: block.len,
            device,
            block: Some(Arc::new(block)),
        };
        self.ranges.insert(address, range);
        address
    }

    pub fn register(&mut self, address: usize, len: usize, device: usize) -> Result<(), Code> {
        let end = address.checked_add(len).ok_or(INVALID_VALUE)?;
        if let Some((start, range)) = self.ranges.range(..end).next_back()
            && start + range.len > address
        {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.ranges.insert(
            address,
            Range {
                len,
                device,
                block: None,
            },
        );
        Ok(())
    }

    pub fn unregister(&mut self, address: usize) -> Result<(), Code> {
        match self.ranges.get(&address) {
            Some(Range { block: None, .. }) => drop(self.ranges.remove(&address)),
            _ => return Err(HOST_MEMORY_NOT_REGISTERED),
        }
        Ok(())
    }

    pub fn free(&mut self, address: usize) -> Result<Arc<Block>, Code> {
        let block = self
            .ranges
            .get(&address)
            .and_then(|range| range.block.clone());
        let block = block.ok_or(INVALID_VALUE)?;
        self.ranges.remove(&address);
        Ok(block)
    }

    /// The pinned range that an address lies in, with its start.
    pub fn find(&self, address: usize) -> Option<(usize, &Range)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.len).then_some((*start, range))
    }
}
