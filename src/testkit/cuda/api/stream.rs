//! Streams.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::event::Event;
use crate::call::{call, give};
use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE};
use crate::driver::{Driver, lock};
use crate::stream;

/// A `CUstream`: a number, not an address.
pub type Stream = *mut c_void;

/// The only flag: the stream does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(place: *mut Stream, flags: c_uint) -> Code {
    // SAFETY: the contract is the same.
    call("cuStreamCreate", |driver| unsafe {
        create(driver, place, flags)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    place: *mut Stream,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    // SAFETY: the contract is the same.
    call("cuStreamCreateWithPriority", |driver| unsafe {
        create(driver, place, flags)
    })
}

/// # Safety
/// The place must be null or valid for a write.
unsafe fn create(driver: &Driver, place: *mut Stream, flags: c_uint) -> Result<(), Code> {
    let device = driver.current()?;
    if place.is_null() || flags & !NON_BLOCKING != 0 {
        return Err(INVALID_VALUE);
    }
    let stream = stream::Stream::start(device.ordinal, Arc::clone(&device.health))?;
    let handle = driver.next_handle();
    lock(&driver.streams).insert(handle, stream);
    // SAFETY: not null, hence valid by this function's contract.
    unsafe { give(place, std::ptr::without_provenance_mut(handle)) }
}

/// Returns at once: what is enqueued is still done.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Stream) -> Code {
    call("cuStreamDestroy_v2", |driver| {
        let handle = stream.addr();
        if handle <= 2 {
            return Err(INVALID_HANDLE);
        }
        let found = driver.stream(handle)?;
        // Two threads may destroy it at the same time: one of them is refused.
        lock(&driver.streams)
            .remove(&handle)
            .ok_or(INVALID_HANDLE)?;
        found.close();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Stream) -> Code {
    call("cuStreamSynchronize", |driver| {
        let stream = driver.stream(stream.addr())?;
        stream.capture.refuse()?;
        let outcome = stream.synchronize();
        // A copy may have left a sticky error meanwhile.
        driver.current()?;
        outcome
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Stream) -> Code {
    call("cuStreamQuery", |driver| {
        let stream = driver.stream(stream.addr())?;
        stream.capture.refuse()?;
        let outcome = stream.query();
        driver.current()?;
        outcome
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Stream, event: Event, _flags: c_uint) -> Code {
    call("cuStreamWaitEvent", |driver| {
        let stream = driver.stream(stream.addr())?;
        stream.capture.refuse()?;
        if let Some(mark) = driver.event(event.addr())?.mark() {
            stream.wait_for(mark);
        }
        Ok(())
    })
}
