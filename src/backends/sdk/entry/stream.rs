//! Entry points of instances that keep batches in flight.

use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use conch_abi as abi;

use super::RawError;
use super::execution::{execute_in, executing, hand_over};
use crate::guard::{caught, guard};
use crate::{Error, StreamInstance};

/// How long a server without Poll spins for a batch before it sleeps between looks.
const SPIN: Duration = Duration::from_micros(20);
/// The longest sleep between two looks: a hundredth of it is lost on work that takes a second.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// # Safety
/// As for `CONCH_ModelInstanceEnqueue`: as for `TRITONBACKEND_ModelInstanceExecute`.
pub unsafe fn instance_enqueue<I: StreamInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> RawError {
    // SAFETY: by this function's contract.
    unsafe { hand_over(raw, requests, request_count, I::enqueue) }
}

/// # Safety
/// As for `CONCH_ModelInstancePoll`: the instance is live, nobody else calls it, and
/// `in_flight_count` is writable.
pub unsafe fn instance_poll<I: StreamInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    in_flight_count: *mut u32,
) -> RawError {
    guard(|| {
        // SAFETY: by this function's contract.
        let count = unsafe { poll::<I>(raw)? };
        // SAFETY: by this function's contract.
        unsafe { in_flight_count.write(u32::try_from(count).unwrap_or(u32::MAX)) };
        Ok(())
    })
}

/// # Safety
/// As for `CONCH_ModelInstanceDepthMax`: as [`instance_poll`].
pub unsafe fn instance_depth_max<I: StreamInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    depth_max: *mut u32,
) -> RawError {
    guard(|| {
        // SAFETY: by this function's contract.
        let depth = unsafe { executing::<I>(raw)? }.instance.depth_max();
        // SAFETY: by this function's contract.
        unsafe { depth_max.write(u32::try_from(depth).unwrap_or(u32::MAX)) };
        Ok(())
    })
}

/// Execute for servers that know nothing else: waits until the batch is finished.
///
/// # Safety
/// As for `TRITONBACKEND_ModelInstanceExecute`.
pub unsafe fn instance_execute_stream<I: StreamInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> RawError {
    // SAFETY: by this function's contract.
    match unsafe { executing::<I>(raw) } {
        Ok(cell) if cell.instance.depth_max() > 0 => {}
        // SAFETY: by this function's contract.
        Ok(cell) => return unsafe { execute_in(cell, raw, requests, request_count) },
        Err(error) => return error.into_raw(),
    }
    // SAFETY: by this function's contract.
    let refused = unsafe { hand_over(raw, requests, request_count, I::enqueue) };
    if !refused.is_null() {
        return refused;
    }
    let started = Instant::now();
    loop {
        // SAFETY: by this function's contract.
        match caught(|| unsafe { poll::<I>(raw) }) {
            Ok(0) => return ptr::null_mut(),
            Ok(_) => pause(started.elapsed()),
            // The batch that panicked has its answer, by its drop; a poll that always panics is
            // told once per sleep.
            Err(_) => thread::sleep(SLEEP_MAX),
        }
    }
}

/// # Safety
/// The instance is live, and nobody else calls it.
unsafe fn poll<I: StreamInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> Result<usize, Error> {
    // SAFETY: by this function's contract.
    let cell = unsafe { executing::<I>(raw)? };
    // SAFETY: the model's box outlives its instances.
    let model = unsafe { cell.model.as_ref() };
    Ok(cell.instance.poll(&model.model))
}

/// Waits for a while that grows with what was waited before.
fn pause(elapsed: Duration) {
    if elapsed < SPIN {
        std::hint::spin_loop();
    } else {
        thread::sleep((elapsed / 8).clamp(SPIN, SLEEP_MAX));
    }
}
