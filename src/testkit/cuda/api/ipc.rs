//! Handles of device memory for other processes.

use std::ffi::c_uint;

use crate::call::{call, give};
use crate::code::{Code, INVALID_VALUE};
use crate::ipc::{self, Handle};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut Handle, address: u64) -> Code {
    call("cuIpcGetMemHandle", |driver| {
        let found = ipc::export(driver, address)?;
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(handle, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    address: *mut u64,
    handle: Handle,
    flags: c_uint,
) -> Code {
    call("cuIpcOpenMemHandle_v2", |driver| {
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        let found = ipc::open(driver, handle, flags)?;
        // SAFETY: the caller passes a place for the result.
        unsafe { give(address, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(address: u64) -> Code {
    call("cuIpcCloseMemHandle", |driver| ipc::close(driver, address))
}
