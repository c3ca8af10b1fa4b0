//! Global memory as a kernel reaches it: what the device may access, found once and then kept for
//! as long as the kernel runs.

use std::sync::Arc;

use crate::backing::Backing;
use crate::code::{Code, ILLEGAL_ADDRESS, MISALIGNED_ADDRESS};
use crate::driver::{Driver, lock};
use crate::host::Block;

/// A range of addresses that is there to its end.
struct Known {
    start: u64,
    len: u64,
    /// Where the interpreter finds it.
    alias: usize,
    _keeps: Keeps,
}

enum Keeps {
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
    known: Vec<Known>,
    /// The range that was used last.
    last: usize,
}

impl<'d> GlobalMemory<'d> {
    pub fn new(driver: &'d Driver, device: usize) -> Self {
        GlobalMemory {
            driver,
            device,
            known: Vec::new(),
            last: 0,
        }
    }

    pub fn read(&mut self, address: u64, bytes: u32) -> Result<u64, Code> {
        let at = self.locate(address, bytes)?;
        // SAFETY: the bytes lie in a range that `known` keeps, and are aligned. Others may write
        // them meanwhile, as on a device.
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
        let inside = |known: &Known| {
            let offset = address.checked_sub(known.start)?;
            (offset + u64::from(bytes) <= known.len).then(|| known.alias + offset as usize)
        };
        if let Some(found) = self.known.get(self.last).and_then(inside) {
            return Ok(found);
        }
        let mut places = self.known.iter().map(inside).enumerate();
        if let Some((place, found)) = places.find_map(|(at, found)| Some((at, found?))) {
            self.last = place;
            return Ok(found);
        }
        let known = self.find(address).ok_or(ILLEGAL_ADDRESS)?;
        let found = inside(&known).ok_or(ILLEGAL_ADDRESS)?;
        self.last = self.known.len();
        self.known.push(known);
        Ok(found)
    }

    fn find(&self, address: u64) -> Option<Known> {
        let space = lock(&self.driver.space);
        if space.window.contains(address) {
            let (start, found) = space.find(address)?;
            let len = found.size;
            let piece = space.pieces(start, len as usize, self.device).ok()?.pop()?;
            return Some(Known {
                start,
                len,
                alias: piece.backing.alias(piece.offset, piece.len)?,
                _keeps: Keeps::Device {
                    _backing: piece.backing,
                },
            });
        }
        drop(space);
        let pinned = lock(&self.driver.pinned);
        let (start, range) = pinned.find(usize::try_from(address).ok()?)?;
        Some(Known {
            start: start as u64,
            len: range.len as u64,
            alias: start,
            _keeps: Keeps::Pinned {
                _block: range.block.clone(),
            },
        })
    }
}
