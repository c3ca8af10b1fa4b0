//! What lies at which device address, and how much of each device is taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backing::{Backing, round_up};
use crate::code::{Code, ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY};
use crate::window::Window;

const PAGE: u64 = 4096;

pub enum Origin {
    /// `cuMemAlloc`.
    Allocated,
    /// `cuIpcOpenMemHandle`, with the inode of the memory.
    Imported { inode: u64, opened: u32 },
    /// `cuMemMap` of a physical allocation.
    Mapped(u64),
}

pub struct Allocation {
    pub size: u64,
    /// Ordinal of the device whose context it belongs to.
    pub device: usize,
    pub origin: Origin,
    pub backing: Arc<Backing>,
    pub offset: u64,
    /// The devices that may access it, one bit each.
    pub access: u64,
    pub id: u64,
}

/// Memory of `cuMemCreate`: it stays until it is released and mapped nowhere.
pub struct Physical {
    pub size: u64,
    pub device: usize,
    pub backing: Arc<Backing>,
    pub is_released: bool,
    pub mappings: usize,
}

/// A part of a range of device memory, as copies use it.
pub struct Piece {
    pub backing: Arc<Backing>,
    pub offset: usize,
    pub len: usize,
}

pub struct Space {
    pub window: Window,
    next: u64,
    ids: u64,
    pub allocations: BTreeMap<u64, Allocation>,
    /// Ranges of `cuMemAddressReserve`: start and size.
    pub reservations: BTreeMap<u64, u64>,
    pub physicals: BTreeMap<u64, Physical>,
    used: Vec<u64>,
    capacity: u64,
}

impl Space {
    pub fn new(window: Window, device_count: usize, capacity: u64) -> Space {
        Space {
            next: window.start,
            window,
            ids: 0,
            allocations: BTreeMap::new(),
            reservations: BTreeMap::new(),
            physicals: BTreeMap::new(),
            used: vec![0; device_count],
            capacity,
        }
    }

    pub fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub fn used(&self, device: usize) -> u64 {
        self.used.get(device).copied().unwrap_or(0)
    }

    /// Takes memory of a device, before it is made.
    pub fn charge(&mut self, device: usize, size: u64) -> Result<(), Code> {
        let used = self.used.get_mut(device).ok_or(INVALID_VALUE)?;
        let sum = used.checked_add(size).filter(|sum| *sum <= self.capacity);
        *used = sum.ok_or(OUT_OF_MEMORY)?;
        Ok(())
    }

    pub fn discharge(&mut self, device: usize, size: u64) {
        if let Some(used) = self.used.get_mut(device) {
            *used = used.saturating_sub(size);
        }
    }

    /// A free range, with a page behind it that stays free. Addresses come back as late as
    /// possible, so that a stale one is found out.
    pub fn find_free(&mut self, size: u64, alignment: u64) -> Result<u64, Code> {
        let size = size.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
        let end = self.window.start + self.window.len;
        let mut start = self.next.next_multiple_of(alignment);
        let mut has_wrapped = false;
        loop {
            let past = start.checked_add(size + PAGE).ok_or(OUT_OF_MEMORY)?;
            if past > end {
                if has_wrapped {
                    return Err(OUT_OF_MEMORY);
                }
                has_wrapped = true;
                start = self.window.start.next_multiple_of(alignment);
                continue;
            }
            match self.last_in(start, past) {
                None => {
                    self.next = past;
                    return Ok(start);
                }
                Some(taken) => start = (taken + PAGE).next_multiple_of(alignment),
            }
        }
    }

    /// The end of the last thing that lies in a range.
    fn last_in(&self, start: u64, end: u64) -> Option<u64> {
        let allocations = self.allocations.range(..end).next_back();
        let allocations = allocations.map(|(at, found)| at + found.size.next_multiple_of(PAGE));
        let reservations = self
            .reservations
            .range(..end)
            .next_back()
            .map(|(at, len)| at + len);
        allocations.max(reservations).filter(|found| *found > start)
    }

    /// Gives memory an address.
    pub fn place(&mut self, allocation: Allocation, alignment: u64) -> Result<u64, Code> {
        let start = self.find_free(allocation.size, alignment)?;
        self.place_at(start, allocation)?;
        Ok(start)
    }

    pub fn place_at(&mut self, start: u64, mut allocation: Allocation) -> Result<(), Code> {
        let len = round_up(allocation.size as usize, PAGE as usize).ok_or(INVALID_VALUE)?;
        let backing = &allocation.backing;
        if !self
            .window
            .attach(start, len as u64, backing, allocation.offset)
        {
            return Err(OUT_OF_MEMORY);
        }
        allocation.id = self.next_id();
        self.allocations.insert(start, allocation);
        Ok(())
    }

    /// Takes the thing at exactly this address away.
    pub fn remove(&mut self, start: u64) -> Option<Allocation> {
        let found = self.allocations.remove(&start)?;
        self.window.detach(start, found.size.next_multiple_of(PAGE));
        match found.origin {
            Origin::Allocated => self.discharge(found.device, found.size),
            Origin::Imported { .. } => {}
            Origin::Mapped(handle) => {
                if let Some(physical) = self.physicals.get_mut(&handle) {
                    physical.mappings -= 1;
                }
                self.drop_if_unused(handle);
            }
        }
        Some(found)
    }

    /// Ends a physical allocation that is released and mapped nowhere.
    pub fn drop_if_unused(&mut self, handle: u64) {
        let is_unused = |found: &Physical| found.is_released && found.mappings == 0;
        if self.physicals.get(&handle).is_some_and(is_unused)
            && let Some(physical) = self.physicals.remove(&handle)
        {
            self.discharge(physical.device, physical.size);
        }
    }

    /// The allocation that an address lies in, with its start.
    pub fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (start, found) = self.allocations.range(..=address).next_back()?;
        (address - start < found.size).then_some((*start, found))
    }

    /// The parts of a range. Only mapped memory may go on in the next mapping.
    pub fn pieces(&self, address: u64, len: usize, device: usize) -> Result<Vec<Piece>, Code> {
        let (mut address, mut left) = (address, len as u64);
        let mut pieces = Vec::new();
        let mut may_access = true;
        while left > 0 {
            let (start, found) = self.find(address).ok_or(INVALID_VALUE)?;
            let inside = address - start;
            let len = left.min(found.size - inside);
            if len < left && !matches!(found.origin, Origin::Mapped(_)) {
                return Err(INVALID_VALUE);
            }
            may_access &= found.access >> device & 1 == 1 || found.access >> found.device & 1 == 1;
            pieces.push(Piece {
                backing: Arc::clone(&found.backing),
                offset: (found.offset + inside) as usize,
                len: len as usize,
            });
            address += len;
            left -= len;
        }
        if may_access {
            Ok(pieces)
        } else {
            Err(ILLEGAL_ADDRESS)
        }
    }
}
