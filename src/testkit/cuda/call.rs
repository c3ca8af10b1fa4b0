//! What every function of the driver does around its own work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::code::{Code, INVALID_VALUE, SUCCESS, UNKNOWN};
use crate::driver::Driver;
use crate::faults;

/// Counts the call, answers an ordered fault, and lets no panic out.
pub fn call_before_init(name: &str, body: impl FnOnce() -> Result<(), Code>) -> Code {
    guard(|| {
        count(name)?;
        body()
    })
}

/// As [`call_before_init`], for a function that needs the driver.
pub fn call(name: &str, body: impl FnOnce(&'static Driver) -> Result<(), Code>) -> Code {
    guard(|| {
        let fault = count(name);
        let driver = Driver::get()?;
        driver.follow_orders();
        if let (Err(code), Some(device)) = (fault, driver.bound()) {
            device.health.note(code);
        }
        fault?;
        body(driver)
    })
}

/// As [`call`], for a function that names its device.
pub fn call_on(
    name: &str,
    ordinal: i32,
    body: impl FnOnce(&'static Driver, &'static crate::driver::Device) -> Result<(), Code>,
) -> Code {
    guard(|| {
        let fault = count(name);
        let driver = Driver::get()?;
        driver.follow_orders();
        let device = driver.device(ordinal)?;
        if let Err(code) = fault {
            device.health.note(code);
        }
        fault?;
        body(driver, device)
    })
}

fn count(name: &str) -> Result<(), Code> {
    static START: Once = Once::new();
    START.call_once(faults::read_environment);
    faults::pass(name).map_or(Ok(()), Err)
}

fn guard(body: impl FnOnce() -> Result<(), Code>) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Writes a result to where the caller wants it; refuses a null pointer.
///
/// # Safety
/// The pointer must be null or valid for a write.
pub unsafe fn give<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, hence valid by this function's contract. C does not promise alignment.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Reads what the caller passes by pointer; refuses a null pointer.
///
/// # Safety
/// The pointer must be null or valid for a read.
pub unsafe fn take<T: Copy>(place: *const T) -> Result<T, Code> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, hence valid by this function's contract. C does not promise alignment.
    Ok(unsafe { place.read_unaligned() })
}
