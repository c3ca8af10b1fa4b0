//! Device memory, and what can be asked about pointers.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::context::Context;
use crate::backing::Backing;
use crate::call::{call, give};
use crate::code::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use crate::driver::{Driver, lock};
use crate::faults;
use crate::ipc::ALIGNMENT;
use crate::space::{Allocation, Origin};

const MEMORY_HOST: c_uint = 1;
const MEMORY_DEVICE: c_uint = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    call("cuMemGetInfo_v2", |driver| {
        let device = driver.current()?;
        let bytes = driver.config.bytes;
        let used = lock(&driver.space).used(device.ordinal);
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(free, (bytes - used) as usize) }?;
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(total, bytes as usize) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, size: usize) -> Code {
    call("cuMemAlloc_v2", |driver| {
        let device = driver.current()?.ordinal;
        if address.is_null() || size == 0 {
            return Err(INVALID_VALUE);
        }
        let found = allocate(driver, device, size)?;
        // SAFETY: the caller passes a place for the result.
        unsafe { give(address, found) }
    })
}

fn allocate(driver: &Driver, device: usize, size: usize) -> Result<u64, Code> {
    lock(&driver.space).charge(device, size as u64)?;
    // Filling it takes long: others may use the address space meanwhile.
    let backing = Backing::create(size).map_err(|_| OUT_OF_MEMORY);
    let mut space = lock(&driver.space);
    let placed = backing.and_then(|backing| {
        let allocation = Allocation {
            size: size as u64,
            device,
            origin: Origin::Allocated,
            backing: Arc::new(backing),
            offset: 0,
            access: u64::MAX,
            id: 0,
        };
        space.place(allocation, ALIGNMENT)
    });
    placed.inspect_err(|_| space.discharge(device, size as u64))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call("cuMemFree_v2", |driver| {
        driver.current()?;
        let mut space = lock(&driver.space);
        let found = space.allocations.get(&address).ok_or(INVALID_VALUE)?;
        if !matches!(found.origin, Origin::Allocated) {
            return Err(INVALID_VALUE);
        }
        if Arc::strong_count(&found.backing) > 1 {
            faults::count_up("freed_in_flight");
        }
        space.remove(address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    start: *mut u64,
    size: *mut usize,
    address: u64,
) -> Code {
    call("cuMemGetAddressRange_v2", |driver| {
        driver.current()?;
        let space = lock(&driver.space);
        let (from, found) = space.find(address).ok_or(INVALID_VALUE)?;
        if !start.is_null() {
            // SAFETY: the caller passes a place for the result.
            unsafe { give(start, from) }?;
        }
        if !size.is_null() {
            // SAFETY: the caller passes a place for the result.
            unsafe { give(size, found.size as usize) }?;
        }
        Ok(())
    })
}

/// What is known of memory that the driver knows.
struct Known {
    kind: c_uint,
    device: usize,
    start: u64,
    size: u64,
    id: u64,
    is_exportable: bool,
}

fn known(driver: &Driver, address: u64) -> Result<Known, Code> {
    if let Some((start, found)) = lock(&driver.space).find(address) {
        return Ok(Known {
            kind: MEMORY_DEVICE,
            device: found.device,
            start,
            size: found.size,
            id: found.id,
            is_exportable: matches!(found.origin, Origin::Allocated),
        });
    }
    let pinned = lock(&driver.pinned);
    let (start, range) = pinned.find(address as usize).ok_or(INVALID_VALUE)?;
    Ok(Known {
        kind: MEMORY_HOST,
        device: range.device,
        start: start as u64,
        size: range.len as u64,
        // Bit 63 tells it from the numbers of device memory.
        id: start as u64 | 1 << 63,
        is_exportable: false,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: c_uint,
    address: u64,
) -> Code {
    call("cuPointerGetAttribute", |driver| {
        let found = known(driver, address)?;
        let device = driver.devices.get(found.device).ok_or(INVALID_VALUE)?;
        device.health.check()?;
        let context: Context = std::ptr::without_provenance_mut(device.context());
        // SAFETY: the caller passes null or a place for what the attribute has.
        unsafe {
            match (attribute, found.kind) {
                (1, _) => give(data.cast(), context),
                (2, kind) => give(data.cast(), kind),
                // The pointer as the device, and as the host, knows it.
                (3, _) | (4, MEMORY_HOST) => give(data.cast(), address),
                (7, _) => give(data.cast(), found.id),
                // Whether it is managed memory.
                (8, _) => give(data.cast(), 0_u8),
                (9, _) => give(data.cast(), found.device as c_int),
                // Whether `cuIpcGetMemHandle` takes it.
                (10, _) => give(data.cast(), u8::from(found.is_exportable)),
                (11, _) => give(data.cast(), found.start),
                (12, _) => give(data.cast(), found.size as usize),
                (13, _) => give(data.cast(), 1_u8),
                _ => Err(INVALID_VALUE),
            }
        }
    })
}
