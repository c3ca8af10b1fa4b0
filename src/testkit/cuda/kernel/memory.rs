//! Global memory as a kernel reaches it: what the device may access, found once and then kept for
//! as long as the kernel runs.

use std::sync::Arc;

use crate::backing::Backing;
use crate::code::{Code, ILLEGAL_ADDRESS, MISALIGNED_ADDRESS};
use crate::driver::{Driver, lock};
use crate::host::Block;

/// A range of addresses that is there to its end.
struct CachedRange {
    start: u64,
    len: u64,
    /// Where the interpreter finds it.
    alias: usize,
    _owner: Owner,
}

/// What keeps the memory of a range.
enum Owner {
    Device {
        _backing: Arc<Backing>,
    },
    /// Registered memory is the caller's to keep.
    Pinned {
        _block: Option<Arc<Block>>,
    },
}

pub struct GlobalMemory<'d> {
    driver: &'d Driver,
    device: usize,
    ranges: Vec<CachedRange>,
    /// The range that was used last.
    last: usize,
}

impl<'d> GlobalMemory<'d> {
    pub fn new(driver: &'d Driver, device: usize) -> Self {
        GlobalMemory {
            driver,
            device,
            ranges: Vec::new(),
            last: 0,
        }
    }

    pub fn read(&mut self, address: u64, bytes: u32) -> Result<u64, Code> {
        let at = self.locate(address, bytes)?;
        // SAFETY: the bytes lie in one of `ranges`, which keeps them, and are aligned. Others may
        // write them meanwhile, as on a device.
        let value = unsafe {
            match bytes {
                1 => u64::from((at as *const u8).read_volatile()),
                2 => u64::from((at as *const u16).read_volatile()),
                4 => u64::from((at as *const u32).read_volatile()),
                _ => (at as *const u64).read_volatile(),
            }
        };
        Ok(value)
    }

    pub fn write(&mut self, address: u64, bytes: u32, value: u64) -> Result<(), Code> {
        let at = self.locate(address, bytes)?;
        // SAFETY: as in `read`.
        unsafe {
            match bytes {
                1 => (at as *mut u8).write_volatile(value as u8),
                2 => (at as *mut u16).write_volatile(value as u16),
                4 => (at as *mut u32).write_volatile(value as u32),
                _ => (at as *mut u64).write_volatile(value),
            }
        }
        Ok(())
    }

    /// Where the bytes at an address of the device are.
    fn locate(&mut self, address: u64, bytes: u32) -> Result<usize, Code> {
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(MISALIGNED_ADDRESS);
        }
        let inside = |range: &CachedRange| {
            let offset = address.checked_sub(range.start)?;
            (offset + u64::from(bytes) <= range.len).then(|| range.alias + offset as usize)
        };
        if let Some(found) = self.ranges.get(self.last).and_then(inside) {
            return Ok(found);
        }
        let mut others = self.ranges.iter().map(inside).enumerate();
        if let Some((index, found)) = others.find_map(|(index, found)| Some((index, found?))) {
            self.last = index;
            return Ok(found);
        }
        let range = self.find(address).ok_or(ILLEGAL_ADDRESS)?;
        let found = inside(&range).ok_or(ILLEGAL_ADDRESS)?;
        self.last = self.ranges.len();
        self.ranges.push(range);
        Ok(found)
    }

    fn find(&self, address: u64) -> Option<CachedRange> {
        let space = lock(&self.driver.space);
        if space.window.contains(address) {
            let (start, found) = space.find(address)?;
            let len = found.size;
            let piece = space.pieces(start, len as usize, self.device).ok()?.pop()?;
            return Some(CachedRange {
                start,
                len,
                alias: piece.backing.alias(piece.offset, piece.len)?,
                _owner: Owner::Device {
                    _backing: piece.backing,
                },
            });
        }
        drop(space);
        let pinned = lock(&self.driver.pinned);
        let (start, range) = pinned.find(usize::try_from(address).ok()?)?;
        Some(CachedRange {
            start: start as u64,
            len: range.len as u64,
            alias: start,
            _owner: Owner::Pinned {
                _block: range.block.clone(),
            },
        })
    }
}
