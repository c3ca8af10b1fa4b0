//! Entry points that execute batches: at once, in two parts, or beyond the call.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::time::Duration;

use conch_abi as abi;

use super::RawError;
use super::cells::InstanceCell;
use crate::Error;
use crate::backend::{Instance, OpenInstance, Progress};
use crate::batch::{Batch, ExecutionStart};
use crate::clock::monotonic_ns;
use crate::detached::{DetachedBatch, DetachingInstance};
use crate::guard::caught;
use crate::slot::Slot;

/// # Safety
/// As for `TRITONBACKEND_ModelInstanceExecute`: the instance is live and executes nothing else;
/// `requests` points at `request_count` requests, which this call owns if it returns success.
pub unsafe fn instance_execute<I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> RawError {
    // SAFETY: by this function's contract.
    match unsafe { executing::<I>(raw) } {
        // SAFETY: by this function's contract.
        Ok(cell) => unsafe { execute_in(cell, raw, requests, request_count) },
        Err(error) => error.into_raw(),
    }
}

/// [`instance_execute`] for a caller that has the instance's box already.
///
/// # Safety
/// As [`instance_execute`]; the box is that of the instance.
pub(super) unsafe fn execute_in<I: Instance>(
    cell: &mut InstanceCell<I>,
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> RawError {
    let begin = |instance: &mut I, model: &I::Model, batch: &Batch<'_>| {
        instance.execute(model, batch).map(|()| Progress::Done)
    };
    let start = ExecutionStart {
        exec_ns: monotonic_ns(),
        compute_ns: 0,
    };
    // SAFETY: by this function's contract.
    match unsafe { begin_in(cell, raw, requests, request_count, start, begin) } {
        Ok(_) => ptr::null_mut(),
        Err(error) => error,
    }
}

/// # Safety
/// As for `CONCH_ModelInstanceExecuteBegin`: as [`instance_execute`], and `is_open` is writable.
pub unsafe fn instance_execute_begin<I: OpenInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
    wait_ns: u64,
    is_open: *mut bool,
) -> RawError {
    let limit = Duration::from_nanos(wait_ns);
    let begin =
        |instance: &mut I, model: &I::Model, batch: &Batch<'_>| instance.begin(model, batch, limit);
    // SAFETY: by this function's contract.
    match unsafe { begin_execution(raw, requests, request_count, begin) } {
        Ok(progress) => {
            // SAFETY: by this function's contract.
            unsafe { is_open.write(progress == Progress::Open) };
            ptr::null_mut()
        }
        Err(error) => error,
    }
}

/// # Safety
/// As for `CONCH_ModelInstanceExecuteEnd`: the instance is live and was left open.
pub unsafe fn instance_execute_end<I: OpenInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> RawError {
    // SAFETY: by this function's contract.
    let cell = match unsafe { executing::<I>(raw) } {
        Ok(cell) => cell,
        Err(error) => return error.into_raw(),
    };
    let Some(open) = cell.open.take() else {
        return ptr::null_mut();
    };
    // SAFETY: the requests are the backend's since the execution began; the slots are as that left
    // them.
    let (batch, instance, model) = unsafe { parts(raw, cell, &open.requests, open.start) };
    let result = caught(|| instance.end(model, &batch));
    batch.finish(result)
}

/// # Safety
/// As [`instance_execute`].
pub unsafe fn instance_execute_detached<I: DetachingInstance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> RawError {
    // SAFETY: by this function's contract.
    unsafe { hand_over(raw, requests, request_count, I::submit) }
}

/// Gives `submit` the batch of a call, for good.
///
/// # Safety
/// As [`instance_execute`].
pub(super) unsafe fn hand_over<I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
    submit: impl FnOnce(&mut I, &I::Model, DetachedBatch),
) -> RawError {
    let start = ExecutionStart {
        exec_ns: monotonic_ns(),
        compute_ns: 0,
    };
    // SAFETY: by this function's contract.
    let cell = match unsafe { executing::<I>(raw) } {
        Ok(cell) => cell,
        Err(error) => return error.into_raw(),
    };
    // SAFETY: by this function's contract.
    let requests = match unsafe { listed(requests, request_count) } {
        Ok(Some(requests)) => requests,
        Ok(None) => return ptr::null_mut(),
        Err(error) => return error,
    };
    // SAFETY: the model's box outlives its instances.
    let model = unsafe { cell.model.as_ref() };
    // SAFETY: the requests are the backend's, since this returns success from here on; Finalize,
    // before which the instance is live, waits for the factories.
    let batch = unsafe {
        DetachedBatch::new(
            raw,
            requests,
            model.max_batch_size,
            model.is_decoupled,
            start,
            &cell.factories,
        )
    };
    // A panic is logged by `caught`, and the batch answered by its drop.
    let instance = &mut cell.instance;
    let _ = caught(|| {
        submit(instance, &model.model, batch);
        Ok(())
    });
    ptr::null_mut()
}

/// The requests of a call; `None` if there are none.
///
/// # Safety
/// `requests` is null or points at `request_count` entries, which live during `'r`.
unsafe fn listed<'r>(
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
) -> Result<Option<&'r [NonNull<abi::TRITONBACKEND_Request>]>, RawError> {
    if requests.is_null() || request_count == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's array. It may hold nulls, so it is read as such first.
    let requests = unsafe { std::slice::from_raw_parts(requests, request_count as usize) };
    if requests.iter().any(|request| request.is_null()) {
        return Err(Error::internal("null request given to the backend").into_raw());
    }
    // SAFETY: the same array, now known to hold no nulls; NonNull has the layout of a pointer.
    Ok(Some(unsafe {
        std::slice::from_raw_parts(
            requests
                .as_ptr()
                .cast::<NonNull<abi::TRITONBACKEND_Request>>(),
            requests.len(),
        )
    }))
}

/// Executes by `begin`, and keeps what that leaves open.
///
/// # Safety
/// As [`instance_execute`].
unsafe fn begin_execution<I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
    begin: impl FnOnce(&mut I, &I::Model, &Batch<'_>) -> Result<Progress, Error>,
) -> Result<Progress, RawError> {
    let start = ExecutionStart {
        exec_ns: monotonic_ns(),
        compute_ns: 0,
    };
    // SAFETY: by this function's contract.
    let cell = unsafe { executing::<I>(raw) }.map_err(Error::into_raw)?;
    // SAFETY: by this function's contract.
    unsafe { begin_in(cell, raw, requests, request_count, start, begin) }
}

/// [`begin_execution`] in the instance's box.
///
/// # Safety
/// As [`instance_execute`]; the box is that of the instance.
unsafe fn begin_in<I: Instance>(
    cell: &mut InstanceCell<I>,
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    requests: *mut *mut abi::TRITONBACKEND_Request,
    request_count: u32,
    start: ExecutionStart,
    begin: impl FnOnce(&mut I, &I::Model, &Batch<'_>) -> Result<Progress, Error>,
) -> Result<Progress, RawError> {
    // SAFETY: by this function's contract.
    let Some(requests) = (unsafe { listed(requests, request_count) })? else {
        return Ok(Progress::Done);
    };
    cell.slots.clear();
    cell.slots.resize_with(requests.len(), Slot::default);
    let open = {
        // SAFETY: the requests are live and this thread's until Execute returns, or the backend's
        // if it leaves them open; there is one fresh slot per request.
        let (batch, instance, model) = unsafe { parts(raw, cell, requests, start) };
        match caught(|| begin(instance, model, &batch)) {
            Ok(Progress::Open) => batch.open(),
            result => {
                let error = batch.finish(result.map(drop));
                return match error.is_null() {
                    true => Ok(Progress::Done),
                    false => Err(error),
                };
            }
        }
    };
    cell.open = Some(open);
    Ok(Progress::Open)
}

/// # Safety
/// The instance is live, and its state is the box of `instance_initialize`, used by one execution
/// at a time.
pub(super) unsafe fn executing<'s, I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> Result<&'s mut InstanceCell<I>, Error> {
    let mut state: *mut c_void = ptr::null_mut();
    // SAFETY: by this function's contract.
    unsafe {
        Error::check(abi::TRITONBACKEND_ModelInstanceState(raw, &raw mut state))?;
        state
            .cast::<InstanceCell<I>>()
            .as_mut()
            .ok_or_else(|| Error::internal("instance without a state"))
    }
}

/// What a call that executes needs.
///
/// # Safety
/// As [`Batch::new`].
unsafe fn parts<'c, I: Instance>(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
    cell: &'c mut InstanceCell<I>,
    requests: &'c [NonNull<abi::TRITONBACKEND_Request>],
    start: ExecutionStart,
) -> (Batch<'c>, &'c mut I, &'c I::Model) {
    // SAFETY: the model's box outlives its instances.
    let model = unsafe { cell.model.as_ref() };
    // SAFETY: by this function's contract.
    let batch = unsafe {
        Batch::new(
            raw,
            requests,
            &cell.slots,
            model.max_batch_size,
            model.is_decoupled,
            start,
            &cell.factories,
        )
    };
    (batch, &mut cell.instance, &model.model)
}
