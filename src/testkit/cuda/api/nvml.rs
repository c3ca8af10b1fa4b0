//! What the server asks NVIDIA's management library for. The same file serves as
//! `libnvidia-ml.so.1`: a device draws 100 W while the process lives, and no kernel ever runs.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::time::Instant;

use crate::config::uuid_text;
use crate::driver::{Device, Driver, lock};

const SUCCESS: u32 = 0;
const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;

static STARTED: OnceLock<Instant> = OnceLock::new();
const MILLIWATTS: u32 = 100_000;
const LIMIT_MILLIWATTS: u32 = 700_000;

#[repr(C)]
pub struct NvmlUtilization {
    gpu: u32,
    memory: u32,
}

#[repr(C)]
pub struct NvmlMemory {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> u32 {
    STARTED.get_or_init(Instant::now);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> u32 {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(_code: u32) -> *const c_char {
    c"an error of the double".as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut *mut c_void,
) -> u32 {
    if uuid.is_null() || device.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, hence a C string by the library's contract.
    let wanted = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
    let Ok(driver) = Driver::get() else {
        return UNINITIALIZED;
    };
    let found = driver
        .devices
        .iter()
        .find(|device| uuid_text(&device.hardware.uuid) == wanted);
    let Some(found) = found else {
        return NOT_FOUND;
    };
    // A handle is a number above 0.
    // SAFETY: not null, hence a place for the result.
    unsafe { *device = std::ptr::without_provenance_mut(found.ordinal + 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: *mut c_void,
    rates: *mut NvmlUtilization,
) -> u32 {
    // SAFETY: the caller passes null or a place for the result.
    unsafe { answer(device, rates, |_, _| NvmlUtilization { gpu: 0, memory: 0 }) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: *mut c_void,
    memory: *mut NvmlMemory,
) -> u32 {
    // SAFETY: the caller passes null or a place for the result.
    unsafe {
        answer(device, memory, |driver, device| {
            let total = driver.config.bytes;
            let used = lock(&driver.space).used(device.ordinal);
            NvmlMemory {
                version: 2,
                total,
                reserved: 0,
                free: total - used,
                used,
            }
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: *mut c_void, power: *mut u32) -> u32 {
    // SAFETY: the caller passes null or a place for the result.
    unsafe { answer(device, power, |_, _| MILLIWATTS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    device: *mut c_void,
    limit: *mut u32,
) -> u32 {
    // SAFETY: the caller passes null or a place for the result.
    unsafe { answer(device, limit, |_, _| LIMIT_MILLIWATTS) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: *mut c_void,
    energy: *mut u64,
) -> u32 {
    // SAFETY: the caller passes null or a place for the result.
    unsafe {
        answer(device, energy, |_, _| {
            let elapsed = STARTED.get_or_init(Instant::now).elapsed();
            // Millijoules; it began long before the process.
            1_000_000 + elapsed.as_millis() as u64 * u64::from(MILLIWATTS) / 1000
        })
    }
}

/// # Safety
/// `target` is null or a place for the result.
unsafe fn answer<T>(
    device: *mut c_void,
    target: *mut T,
    read: impl FnOnce(&Driver, &Device) -> T,
) -> u32 {
    let Ok(driver) = Driver::get() else {
        return UNINITIALIZED;
    };
    let ordinal = device.addr().wrapping_sub(1);
    let Some(device) = driver.devices.get(ordinal) else {
        return INVALID_ARGUMENT;
    };
    if target.is_null() {
        return INVALID_ARGUMENT;
    }
    let value = read(driver, device);
    // SAFETY: by this function's contract.
    unsafe { target.write(value) };
    SUCCESS
}
