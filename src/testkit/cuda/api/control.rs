//! What tests call: not part of the driver.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering;

use crate::code::{Code, SUCCESS};
use crate::driver::Driver;
use crate::{copy, faults};

/// The calls number `after + 1` to `after + count` of `name`, from now on, answer `code`. A count
/// of 0 takes back what was ordered for the name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_cuda_double_fail(
    name: *const c_char,
    after: u32,
    count: u32,
    code: u32,
) {
    // SAFETY: the caller passes null or a C string.
    if let Some(name) = unsafe { text(name) } {
        faults::add(&name, after, count, code);
    }
}

/// How often a function was called, or how many of a kind exist now: `live_allocations`,
/// `live_pinned`, `live_streams`, `live_events`, `live_modules`, `live_graphs`, `live_ipc`,
/// `live_contexts`, `live_reservations`, `live_mappings`. `freed_in_flight`: memory freed under a
/// running copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_cuda_double_count(name: *const c_char) -> u64 {
    // SAFETY: the caller passes null or a C string.
    let Some(name) = (unsafe { text(name) }) else {
        return 0;
    };
    let live = Driver::get().ok().and_then(|driver| driver.live(&name));
    live.unwrap_or_else(|| faults::count(&name))
}

/// How long each copy takes from now on. `u64::MAX` holds copies back until another time is set.
#[unsafe(no_mangle)]
pub extern "C" fn conch_cuda_double_set_copy_us(copy_us: u64) {
    if let Ok(driver) = Driver::get() {
        driver.copy_us.store(copy_us, Ordering::Release);
    }
}

/// How long each kernel takes from now on, beyond what it computes, as for copies.
#[unsafe(no_mangle)]
pub extern "C" fn conch_cuda_double_set_kernel_us(kernel_us: u64) {
    if let Ok(driver) = Driver::get() {
        driver.kernel_us.store(kernel_us, Ordering::Release);
    }
}

/// Copies out of the memory of a device, at once and uncounted, for a function of the host that
/// does on a stream what a kernel would. Answers as a copy does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_cuda_double_read(
    target: *mut c_void,
    address: u64,
    len: usize,
    device: usize,
) -> Code {
    // SAFETY: the caller's memory is that long.
    code(|driver| unsafe { copy::read(driver, target.cast(), address, len, device) })
}

/// Copies into the memory of a device, as [`conch_cuda_double_read`] out of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_cuda_double_write(
    address: u64,
    source: *const c_void,
    len: usize,
    device: usize,
) -> Code {
    // SAFETY: the caller's memory is that long.
    code(|driver| unsafe { copy::write(driver, address, source.cast(), len, device) })
}

fn code(call: impl FnOnce(&Driver) -> Result<(), Code>) -> Code {
    match Driver::get().and_then(call) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// # Safety
/// The pointer must be null or a C string.
unsafe fn text(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, hence a C string by this function's contract.
    let name = unsafe { CStr::from_ptr(name) };
    Some(name.to_string_lossy().into_owned())
}
