//! Primary contexts, and which one is current.

use std::ffi::{c_int, c_uint, c_void};

use crate::call::{call, call_on, give};
use crate::code::{
    Code, INVALID_CONTEXT, INVALID_VALUE, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_UNSUPPORTED,
};
use crate::driver::lock;

/// A `CUcontext`: a number, not an address.
pub type Context = *mut c_void;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Context, device: c_int) -> Code {
    call_on("cuDevicePrimaryCtxRetain", device, |_, found| {
        if context.is_null() {
            return Err(INVALID_VALUE);
        }
        let handle = std::ptr::without_provenance_mut(found.retain()?);
        // SAFETY: the caller passes a place for the result.
        unsafe { give(context, handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    call_on("cuDevicePrimaryCtxRelease_v2", device, |driver, found| {
        driver.release(found)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Context) -> Code {
    call("cuCtxSetCurrent", |driver| driver.bind(context.addr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Context) -> Code {
    call("cuCtxGetCurrent", |driver| {
        let handle = driver.bound().map_or(0, |device| device.context());
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(context, std::ptr::without_provenance_mut(handle)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> Code {
    call("cuCtxGetDevice", |driver| {
        let ordinal = driver.current()?.ordinal;
        // SAFETY: the caller passes null or a place for the result.
        unsafe { give(device, ordinal as c_int) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    call("cuCtxSynchronize", |driver| {
        let device = driver.current()?;
        let mut streams: Vec<_> = lock(&driver.streams).values().cloned().collect();
        streams.retain(|stream| stream.device == device.ordinal);
        streams.extend(device.started_default_stream());
        let mut outcome = Ok(());
        for stream in streams {
            outcome = outcome.and(stream.synchronize());
        }
        device.health.check()?;
        outcome
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, most: *mut c_int) -> Code {
    call("cuCtxGetStreamPriorityRange", |driver| {
        driver.current()?;
        // The driver takes null for what the caller does not want to know.
        for (place, value) in [(least, 0), (most, -5)] {
            if !place.is_null() {
                // SAFETY: the caller passes a place for the result.
                unsafe { give(place, value) }?;
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(peer: Context, flags: c_uint) -> Code {
    call("cuCtxEnablePeerAccess", |driver| {
        let device = driver.current()?;
        let peer = driver.context(peer.addr())?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if peer.ordinal == device.ordinal {
            return Err(INVALID_CONTEXT);
        }
        if !driver.config.can_access_peer {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        match device.enable_peer(peer.ordinal) {
            true => Ok(()),
            false => Err(PEER_ACCESS_ALREADY_ENABLED),
        }
    })
}
