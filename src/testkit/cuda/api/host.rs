//! Pinned host memory.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use crate::call::{call, give};
use crate::code::{Code, INVALID_VALUE};
use crate::driver::lock;
use crate::faults;
use crate::host::Block;

const ALLOC_FLAGS: c_uint = 0b111;
const REGISTER_FLAGS: c_uint = 0b1111;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(
    address: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> Code {
    call("cuMemHostAlloc", |driver| {
        let device = driver.current()?.ordinal;
        if address.is_null() || size == 0 || flags & !ALLOC_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let block = Block::create(size)?;
        let found = lock(&driver.pinned).add_block(block, device);
        // SAFETY: the caller passes a place for the result.
        unsafe { give(address, found as *mut c_void) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: *mut c_void) -> Code {
    call("cuMemFreeHost", |driver| {
        driver.current()?;
        let block = lock(&driver.pinned).free(address.addr())?;
        if Arc::strong_count(&block) > 1 {
            faults::count_up("freed_in_flight");
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint) -> Code {
    call("cuMemHostRegister_v2", |driver| {
        let device = driver.current()?.ordinal;
        if address.is_null() || size == 0 || flags & !REGISTER_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        if lock(&driver.space).window.contains(address.addr() as u64) {
            return Err(INVALID_VALUE);
        }
        lock(&driver.pinned).register(address.expose_provenance(), size, device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(address: *mut c_void) -> Code {
    call("cuMemHostUnregister", |driver| {
        driver.current()?;
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        lock(&driver.pinned).unregister(address.addr())
    })
}
