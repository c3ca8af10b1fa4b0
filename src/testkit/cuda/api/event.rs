//! Events. Any context may ask about an event and wait for it; only its own records it.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use crate::call::{call, give};
use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE};
use crate::driver::{self, Driver, lock};

/// A `CUevent`: a number, not an address.
pub type Event = *mut c_void;

/// Blocking synchronisation, no timing, and for other processes.
const FLAGS: c_uint = 0b111;
const DISABLE_TIMING: c_uint = 0b010;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut Event, flags: c_uint) -> Code {
    call("cuEventCreate", |driver| {
        let device = driver.current()?.ordinal;
        if event.is_null() || flags & !FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = driver.next_handle();
        let event_state = driver::Event::new(device, flags & DISABLE_TIMING == 0);
        lock(&driver.events).insert(handle, Arc::new(event_state));
        // SAFETY: the caller passes a place for the result.
        unsafe { give(event, std::ptr::without_provenance_mut(handle)) }
    })
}

/// A recording that is not reached yet goes on without the event.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Event) -> Code {
    call("cuEventDestroy_v2", |driver| {
        driver.current()?;
        lock(&driver.events)
            .remove(&event.addr())
            .map(drop)
            .ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Event, stream: *mut c_void) -> Code {
    call("cuEventRecord", |driver| {
        let stream = driver.stream(stream.addr())?;
        let event = driver.event(event.addr())?;
        if event.device != stream.device {
            return Err(INVALID_HANDLE);
        }
        stream.capture.refuse()?;
        event.set(stream.record());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Event) -> Code {
    call("cuEventQuery", |driver| {
        let mark = driver.event(event.addr())?.mark();
        let outcome = mark.map_or(Ok(()), |mark| mark.query());
        check(driver, event)?;
        outcome
    })
}

/// On the clock of the host: the double's devices have no other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: Event,
    end: Event,
) -> Code {
    call("cuEventElapsedTime", |driver| {
        let (start, end) = (driver.event(start.addr())?, driver.event(end.addr())?);
        if start.device != end.device {
            return Err(INVALID_HANDLE);
        }
        let since = start.reached_at()?;
        let at = end.reached_at()?;
        let elapsed = match at.checked_duration_since(since) {
            Some(elapsed) => elapsed.as_secs_f32() * 1e3,
            None => -(since.duration_since(at).as_secs_f32() * 1e3),
        };
        // SAFETY: the caller passes a place for the result.
        unsafe { give(milliseconds, elapsed) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Event) -> Code {
    call("cuEventSynchronize", |driver| {
        let mark = driver.event(event.addr())?.mark();
        let outcome = mark.map_or(Ok(()), |mark| mark.wait());
        check(driver, event)?;
        outcome
    })
}

/// A copy may have left a sticky error meanwhile; another thread may have destroyed the event.
fn check(driver: &Driver, event: Event) -> Result<(), Code> {
    match driver.event(event.addr()) {
        Err(INVALID_HANDLE) => Ok(()),
        other => other.map(drop),
    }
}
