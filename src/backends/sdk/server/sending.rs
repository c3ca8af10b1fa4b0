//! Making the server's object of a request, and sending it.

use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;

use super::allocator::allocator;
use super::callbacks::{released, responded};
use super::calls::Call;
use super::request::{RequestCorrelation, RequestInput, ServerRequest};
use super::request_handle::RequestHandle;
use crate::Error;
use crate::device::raw_kind;
use crate::parameter::Parameter;
use crate::symbol::ServerFunction;

type RawServer = NonNull<abi::TRITONSERVER_Server>;
type RawRequest = *mut abi::TRITONSERVER_InferenceRequest;
type SetDouble =
    unsafe extern "C" fn(RawRequest, *const c_char, f64) -> *mut abi::TRITONSERVER_Error;

// SAFETY: the type is that of the header.
static SET_DOUBLE: ServerFunction<SetDouble> =
    unsafe { ServerFunction::new(c"TRITONSERVER_InferenceRequestSetDoubleParameter") };

/// Sends `request` as `call`. On success the server calls back, or has done so.
///
/// # Errors
/// Whatever the server reports. It calls back for none of it.
///
/// # Safety
/// `server` is live during the call.
pub(super) unsafe fn send(
    server: RawServer,
    call: &Arc<Call>,
    mut request: ServerRequest,
) -> Result<(), Error> {
    // SAFETY: the server is live by this function's contract.
    let handle = Arc::new(unsafe { make(server, &request)? });
    let raw = handle.as_ptr();
    // SAFETY: the request is live and not sent; the functions stay where they are, as the library
    // is kept in memory, and the pointer is a number, never followed.
    unsafe {
        Error::check(abi::TRITONSERVER_InferenceRequestSetReleaseCallback(
            raw,
            Some(released),
            call.number().as_pointer(),
        ))?;
        Error::check(abi::TRITONSERVER_InferenceRequestSetResponseCallback(
            raw,
            allocator()?,
            call.number().as_pointer(),
            Some(responded),
            call.number().as_pointer(),
        ))?;
    }
    let inputs = request.inputs.drain(..).map(|input| input.memory).collect();
    let trace = request
        .trace
        .take()
        .map_or(ptr::null_mut(), |trace| trace.into_raw());
    call.keep(handle, inputs);
    // SAFETY: server and request are live; the call keeps what the inputs lie in until the request
    // is released. The trace is the server's from now on.
    let sent = unsafe {
        Error::check(abi::TRITONSERVER_ServerInferAsync(
            server.as_ptr(),
            raw,
            trace,
        ))
    };
    sent.inspect_err(|_| call.release())
}

/// # Safety
/// `server` is live during the call.
unsafe fn make(server: RawServer, request: &ServerRequest) -> Result<RequestHandle, Error> {
    let mut raw = ptr::null_mut();
    // SAFETY: the server is live, the result writable, the name copied; the request is owned by the
    // wrapper.
    let handle = unsafe {
        Error::check(abi::TRITONSERVER_InferenceRequestNew(
            &raw mut raw,
            server.as_ptr(),
            request.model.as_ptr(),
            request.version,
        ))?;
        RequestHandle::new(raw)?
    };
    set_fields(&handle, request)?;
    for (name, value) in &request.parameters {
        set_parameter(&handle, name, value.borrow())?;
    }
    for input in &request.inputs {
        add_input(&handle, input)?;
    }
    for output in &request.outputs {
        // SAFETY: the request is live, the name is copied.
        unsafe {
            Error::check(abi::TRITONSERVER_InferenceRequestAddRequestedOutput(
                handle.as_ptr(),
                output.as_ptr(),
            ))?;
        }
    }
    Ok(handle)
}

fn set_fields(handle: &RequestHandle, request: &ServerRequest) -> Result<(), Error> {
    let raw = handle.as_ptr();
    // SAFETY: the request is live and not sent; texts are NUL-terminated and copied.
    unsafe {
        Error::check(abi::TRITONSERVER_InferenceRequestSetId(
            raw,
            request.id.as_ptr(),
        ))?;
        Error::check(match &request.correlation {
            RequestCorrelation::Number(number) => {
                abi::TRITONSERVER_InferenceRequestSetCorrelationId(raw, *number)
            }
            RequestCorrelation::Text(text) => {
                abi::TRITONSERVER_InferenceRequestSetCorrelationIdString(raw, text.as_ptr())
            }
        })?;
        Error::check(abi::TRITONSERVER_InferenceRequestSetFlags(
            raw,
            request.flags,
        ))?;
        Error::check(abi::TRITONSERVER_InferenceRequestSetPriorityUInt64(
            raw,
            request.priority,
        ))?;
        Error::check(abi::TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
            raw,
            request.timeout_us,
        ))
    }
}

fn set_parameter(handle: &RequestHandle, name: &CStr, value: Parameter<'_>) -> Result<(), Error> {
    let (raw, name) = (handle.as_ptr(), name.as_ptr());
    // SAFETY: the request is live and not sent; name and value are copied.
    unsafe {
        Error::check(match value {
            Parameter::Text(text) => {
                abi::TRITONSERVER_InferenceRequestSetStringParameter(raw, name, text.as_ptr())
            }
            Parameter::Integer(value) => {
                abi::TRITONSERVER_InferenceRequestSetIntParameter(raw, name, value)
            }
            Parameter::Boolean(value) => {
                abi::TRITONSERVER_InferenceRequestSetBoolParameter(raw, name, value)
            }
            Parameter::Number(value) => (SET_DOUBLE.require()?)(raw, name, value),
        })
    }
}

fn add_input(handle: &RequestHandle, input: &RequestInput) -> Result<(), Error> {
    let (raw, name) = (handle.as_ptr(), input.name.as_ptr());
    let (memory, place) = (&input.memory, input.memory.place());
    // SAFETY: the request is live and not sent; name and shape are copied. The bytes stay readable
    // until the request is released or deleted: the call keeps their memory.
    unsafe {
        Error::check(abi::TRITONSERVER_InferenceRequestAddInput(
            raw,
            name,
            input.data_type.to_raw(),
            input.shape.as_ptr(),
            input.shape.len() as u64,
        ))?;
        Error::check(abi::TRITONSERVER_InferenceRequestAppendInputData(
            raw,
            name,
            memory.address().cast_const().cast(),
            memory.len(),
            raw_kind(place.kind),
            place.id,
        ))
    }
}
