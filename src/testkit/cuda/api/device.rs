//! The library itself, its error codes, and devices.

use std::ffi::{c_char, c_int, c_uint};

use crate::call::{call, call_before_init, call_on, give};
use crate::code::{Code, INVALID_VALUE, describe};
use crate::config::{Config, Hardware, Pci};
use crate::driver::Driver;

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Code {
    call_before_init("cuInit", || match flags {
        0 => Driver::start(),
        _ => Err(INVALID_VALUE),
    })
}

/// Works before `cuInit`, as the driver's does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    call_before_init("cuDriverGetVersion", || {
        let found = match Driver::get() {
            Ok(driver) => driver.config.version,
            Err(_) => Config::from_environment().version,
        };
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(version, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, text: *mut *const c_char) -> Code {
    call_before_init("cuGetErrorName", || {
        let name = describe(code).map(|row| row.0.as_ptr());
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(text, name.unwrap_or(std::ptr::null())) }?;
        name.map(drop).ok_or(INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    call_before_init("cuGetErrorString", || {
        let found = describe(code).map(|row| row.1.as_ptr());
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(text, found.unwrap_or(std::ptr::null())) }?;
        found.map(drop).ok_or(INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    call("cuDeviceGetCount", |driver| {
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(count, driver.devices.len() as c_int) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    call_on("cuDeviceGet", ordinal, |_, found| {
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(device, found.ordinal as c_int) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Code {
    call_on("cuDeviceGetName", device, |_, found| {
        let text = format!("Conch Test Double {}", found.hardware.index);
        // SAFETY: the caller passes null or a place of `len` bytes.
        unsafe { give_text(name, len, &text) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> Code {
    call_on("cuDeviceGetUuid", device, |_, found| {
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(uuid, found.hardware.uuid) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> Code {
    call_on("cuDeviceGetUuid_v2", device, |_, found| {
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(uuid, found.hardware.uuid) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Code {
    call_on("cuDeviceTotalMem_v2", device, |driver, _| {
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(bytes, driver.config.bytes as usize) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    device: c_int,
) -> Code {
    call_on("cuDeviceGetAttribute", device, |driver, found| {
        let answer = attribute_of(&driver.config, &found.hardware, attribute);
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(value, answer) }
    })
}

fn attribute_of(config: &Config, hardware: &Hardware, attribute: c_uint) -> c_int {
    match attribute {
        // The number of multiprocessors.
        16 => 132,
        33 => hardware.pci.bus as c_int,
        34 => hardware.pci.device as c_int,
        50 => hardware.pci.domain as c_int,
        75 => config.capability.0,
        76 => config.capability.1,
        // Unified addresses, and virtual memory management.
        41 | 102 => 1,
        _ => 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) -> Code {
    call_on("cuDeviceGetPCIBusId", device, |_, found| {
        let Pci {
            domain,
            bus,
            device,
        } = found.hardware.pci;
        let address = format!("{domain:04x}:{bus:02x}:{device:02x}.0");
        // SAFETY: the caller passes null or a place of `len` bytes.
        unsafe { give_text(text, len, &address) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(
    answer: *mut c_int,
    device: c_int,
    peer: c_int,
) -> Code {
    call_on("cuDeviceCanAccessPeer", device, |driver, found| {
        let is_other = driver.device(peer)?.ordinal != found.ordinal;
        let can_access = is_other && driver.config.can_access_peer;
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(answer, c_int::from(can_access)) }
    })
}

/// Writes as much of a text as fits, and always its end.
///
/// # Safety
/// The place must be null or have `len` writable bytes.
unsafe fn give_text(place: *mut c_char, len: c_int, text: &str) -> Result<(), Code> {
    let room = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
    if place.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let count = text.len().min(room - 1);
    // SAFETY: the place has `room` bytes, of which `count` and the end are written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), count);
        place.add(count).write(0);
    }
    Ok(())
}
