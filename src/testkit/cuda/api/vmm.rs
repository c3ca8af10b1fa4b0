//! Virtual memory management. It needs no current context.

use std::ffi::c_uint;

use crate::call::{call, give, take};
use crate::code::{Code, INVALID_VALUE};
use crate::driver::Driver;
use crate::vmm::{self, Access, GRANULARITY, Properties};

/// Refuses after an error of the context that happens to be current.
fn check(driver: &Driver) -> Result<(), Code> {
    driver
        .bound()
        .map_or(Ok(()), |device| device.health.check())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const Properties,
    option: c_uint,
) -> Code {
    call("cuMemGetAllocationGranularity", |driver| {
        // SAFETY: the caller passes null or properties.
        let properties = unsafe { take(properties) }?;
        vmm::device_of(driver, &properties)?;
        // The minimum and the recommended one are the same.
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(granularity, GRANULARITY as usize) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    size: usize,
    alignment: usize,
    _wish: u64,
    flags: u64,
) -> Code {
    call("cuMemAddressReserve", |driver| {
        check(driver)?;
        if address.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let found = vmm::reserve(driver, size as u64, alignment as u64)?;
        // SAFETY: the caller passes a place for the result.
        unsafe { give(address, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: u64, size: usize) -> Code {
    call("cuMemAddressFree", |driver| {
        check(driver)?;
        vmm::unreserve(driver, address, size as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    properties: *const Properties,
    flags: u64,
) -> Code {
    call("cuMemCreate", |driver| {
        check(driver)?;
        // SAFETY: the caller passes null or properties.
        let properties = unsafe { take(properties) }?;
        if handle.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let found = vmm::create(driver, size as u64, &properties)?;
        // SAFETY: the caller passes a place for the result.
        unsafe { give(handle, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> Code {
    call("cuMemRelease", |driver| {
        check(driver)?;
        vmm::release(driver, handle)
    })
}

/// As the driver documents it, the offset must be 0.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: u64,
    size: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Code {
    call("cuMemMap", |driver| {
        check(driver)?;
        if offset != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        vmm::map(driver, address, size as u64, handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: u64, size: usize) -> Code {
    call("cuMemUnmap", |driver| {
        check(driver)?;
        vmm::unmap(driver, address, size as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: u64,
    size: usize,
    list: *const Access,
    count: usize,
) -> Code {
    call("cuMemSetAccess", |driver| {
        check(driver)?;
        if list.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes `count` descriptions.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        vmm::set_access(driver, address, size as u64, list)
    })
}
