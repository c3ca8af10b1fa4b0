//! Copies and fills on streams.

use std::ffi::{c_uchar, c_void};

use super::context::Context;
use super::stream::Stream;
use crate::call::call;
use crate::code::{Code, INVALID_VALUE};
use crate::copy::{CopyEndpoint, EndpointKind, copy, fill};
use crate::driver::{Driver, lock};

fn device(address: u64) -> CopyEndpoint {
    CopyEndpoint {
        address,
        kind: EndpointKind::Device,
    }
}

fn host(address: *const c_void) -> CopyEndpoint {
    CopyEndpoint {
        address: address.expose_provenance() as u64,
        kind: EndpointKind::Host,
    }
}

fn any(address: u64) -> CopyEndpoint {
    CopyEndpoint {
        address,
        kind: EndpointKind::Any,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Stream) -> Code {
    call("cuMemcpyAsync", |driver| {
        // SAFETY: the contract of the driver's function is that of `copy`.
        unsafe { copy(driver, any(to), any(from), len, stream.addr()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    len: usize,
    stream: Stream,
) -> Code {
    call("cuMemcpyHtoDAsync_v2", |driver| {
        // SAFETY: the contract of the driver's function is that of `copy`.
        unsafe { copy(driver, device(to), host(from), len, stream.addr()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    len: usize,
    stream: Stream,
) -> Code {
    call("cuMemcpyDtoHAsync_v2", |driver| {
        // SAFETY: the contract of the driver's function is that of `copy`.
        unsafe { copy(driver, host(to), device(from), len, stream.addr()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    len: usize,
    stream: Stream,
) -> Code {
    call("cuMemcpyDtoDAsync_v2", |driver| {
        // SAFETY: the contract of the driver's function is that of `copy`.
        unsafe { copy(driver, device(to), device(from), len, stream.addr()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: Context,
    from: u64,
    from_context: Context,
    len: usize,
    stream: Stream,
) -> Code {
    call("cuMemcpyPeerAsync", |driver| {
        driver.current()?;
        check_place(driver, to, to_context)?;
        check_place(driver, from, from_context)?;
        // SAFETY: the contract of the driver's function is that of `copy`.
        unsafe { copy(driver, device(to), device(from), len, stream.addr()) }
    })
}

/// Refuses memory that is not of this context.
fn check_place(driver: &Driver, address: u64, context: Context) -> Result<(), Code> {
    let device = driver.context(context.addr())?;
    device.health.check()?;
    match lock(&driver.space).find(address) {
        Some((_, found)) if found.device == device.ordinal => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, len: usize, stream: Stream) -> Code {
    call("cuMemsetD8Async", |driver| {
        fill(driver, to, value, len, stream.addr())
    })
}
