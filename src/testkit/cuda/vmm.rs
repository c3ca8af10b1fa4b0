//! Virtual memory management: reserved addresses, physical memory, and mappings of one to the
//! other.

use std::sync::Arc;

use crate::backing::Backing;
use crate::code::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use crate::config::MIB;
use crate::driver::{Driver, lock};
use crate::space::{Allocation, Origin, Physical, Space};

pub const GRANULARITY: u64 = 2 * MIB;
const TYPE_PINNED: u32 = 1;
const LOCATION_DEVICE: u32 = 1;

/// A `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

/// A `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub win32: *mut libc::c_void,
    pub flags: [u8; 8],
}

/// A `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Access {
    pub location: Location,
    pub flags: u32,
}

fn check_unit(size: u64) -> Result<(), Code> {
    let is_whole = size > 0 && size.is_multiple_of(GRANULARITY);
    if is_whole { Ok(()) } else { Err(INVALID_VALUE) }
}

/// The ordinal of the device that the properties name.
pub fn device_of(driver: &Driver, properties: &Properties) -> Result<usize, Code> {
    if properties.kind != TYPE_PINNED {
        return Err(INVALID_VALUE);
    }
    located(driver, properties.location)
}

fn located(driver: &Driver, location: Location) -> Result<usize, Code> {
    if location.kind != LOCATION_DEVICE {
        return Err(INVALID_VALUE);
    }
    let device = driver.device(location.id)?;
    device.health.check()?;
    Ok(device.ordinal)
}

pub fn reserve(driver: &Driver, size: u64, alignment: u64) -> Result<u64, Code> {
    check_unit(size)?;
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(INVALID_VALUE);
    }
    let mut space = lock(&driver.space);
    let start = space.find_free(size, alignment.max(GRANULARITY))?;
    space.reservations.insert(start, size);
    Ok(start)
}

/// Gives up a whole reservation, in which nothing may be mapped any more.
pub fn unreserve(driver: &Driver, start: u64, size: u64) -> Result<(), Code> {
    let mut space = lock(&driver.space);
    if space.reservations.get(&start) != Some(&size)
        || space
            .allocations
            .range(start..start + size)
            .next()
            .is_some()
    {
        return Err(INVALID_VALUE);
    }
    space.reservations.remove(&start);
    Ok(())
}

pub fn create(driver: &Driver, size: u64, properties: &Properties) -> Result<u64, Code> {
    let device = device_of(driver, properties)?;
    check_unit(size)?;
    lock(&driver.space).charge(device, size)?;
    // Filling it takes long: others may use the address space meanwhile.
    let backing = Backing::create(size as usize);
    let mut space = lock(&driver.space);
    let Ok(backing) = backing else {
        space.discharge(device, size);
        return Err(OUT_OF_MEMORY);
    };
    let handle = space.next_id();
    let backing = Arc::new(backing);
    let physical = Physical {
        size,
        device,
        backing,
        is_released: false,
        mappings: 0,
    };
    space.physicals.insert(handle, physical);
    Ok(handle)
}

/// Gives the handle up; the memory stays while it is mapped.
pub fn release(driver: &Driver, handle: u64) -> Result<(), Code> {
    let mut space = lock(&driver.space);
    let physical = space
        .physicals
        .get_mut(&handle)
        .filter(|found| !found.is_released);
    physical.ok_or(INVALID_VALUE)?.is_released = true;
    space.drop_if_unused(handle);
    Ok(())
}

/// Maps physical memory at reserved addresses where nothing is mapped yet.
pub fn map(driver: &Driver, start: u64, size: u64, handle: u64) -> Result<(), Code> {
    check_unit(size)?;
    let mut space = lock(&driver.space);
    let (from, len) = space
        .reservations
        .range(..=start)
        .next_back()
        .ok_or(INVALID_VALUE)?;
    let inside = start - from;
    if !inside.is_multiple_of(GRANULARITY) || inside >= *len || size > len - inside {
        return Err(INVALID_VALUE);
    }
    let last = space.allocations.range(..start + size).next_back();
    if last.is_some_and(|(at, found)| at + found.size > start) {
        return Err(INVALID_VALUE);
    }
    let physical = space
        .physicals
        .get(&handle)
        .filter(|found| !found.is_released);
    let physical = physical
        .filter(|found| size <= found.size)
        .ok_or(INVALID_VALUE)?;
    let allocation = Allocation {
        size,
        device: physical.device,
        origin: Origin::Mapped(handle),
        backing: Arc::clone(&physical.backing),
        offset: 0,
        access: 0,
        id: 0,
    };
    space.place_at(start, allocation)?;
    if let Some(physical) = space.physicals.get_mut(&handle) {
        physical.mappings += 1;
    }
    Ok(())
}

/// The starts of the mappings that fill a range exactly.
fn mappings(space: &Space, start: u64, size: u64) -> Result<Vec<u64>, Code> {
    check_unit(size)?;
    let end = start.checked_add(size).ok_or(INVALID_VALUE)?;
    let mut next = start;
    let mut found = Vec::new();
    while next < end {
        let mapping = space.allocations.get(&next).ok_or(INVALID_VALUE)?;
        if !matches!(mapping.origin, Origin::Mapped(_)) {
            return Err(INVALID_VALUE);
        }
        found.push(next);
        next += mapping.size;
    }
    if next == end {
        Ok(found)
    } else {
        Err(INVALID_VALUE)
    }
}

pub fn unmap(driver: &Driver, start: u64, size: u64) -> Result<(), Code> {
    let mut space = lock(&driver.space);
    for mapping in mappings(&space, start, size)? {
        space.remove(mapping);
    }
    Ok(())
}

/// Lets devices access mapped memory, or no longer.
pub fn set_access(driver: &Driver, start: u64, size: u64, list: &[Access]) -> Result<(), Code> {
    let mut bits = Vec::new();
    for access in list {
        let device = located(driver, access.location)?;
        match access.flags {
            0 | 1 | 3 => bits.push((device, access.flags != 0)),
            _ => return Err(INVALID_VALUE),
        }
    }
    let mut space = lock(&driver.space);
    for start in mappings(&space, start, size)? {
        let Some(mapping) = space.allocations.get_mut(&start) else {
            continue;
        };
        for (device, may_access) in &bits {
            let bit = 1_u64 << device;
            mapping.access = if *may_access {
                mapping.access | bit
            } else {
                mapping.access & !bit
            };
        }
    }
    Ok(())
}
