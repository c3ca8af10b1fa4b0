//! Requests, as the backend that executes them sees them.

use std::ffi::{c_char, c_void};

use conch_abi as abi;
use conch_engine::{CorrelationId, Error};

use super::export;
use super::parameter::write_parameter;
use crate::boundary::{as_handle, borrow, release, text, write};
use crate::host::{BackendInput, BackendRequest};

/// How upstream begins messages about a request: with its id, if it has one.
fn prefix(request: &BackendRequest) -> String {
    match request.origin() {
        Ok(origin) if !origin.id.is_empty() => format!("[request id: {}] ", origin.id),
        _ => String::from("[request id: <id_unknown>] "),
    }
}

fn out_of_bounds(request: &BackendRequest, index: u32, count: usize, parts: &str) -> Error {
    Error::invalid(format!(
        "{}out of bounds index {index}: request has {count} {parts}",
        prefix(request)
    ))
}

fn input_at(request: &BackendRequest, index: u32) -> Result<&BackendInput, Error> {
    let input = usize::try_from(index)
        .ok()
        .and_then(|index| request.inputs().get(index));
    input.ok_or_else(|| out_of_bounds(request, index, request.inputs().len(), "inputs"))
}

export! {
    fn TRITONBACKEND_RequestId(request: *mut abi::TRITONBACKEND_Request, id: *mut *const c_char) {
        write(id, borrow(request)?.id()?)
    }

    fn TRITONBACKEND_RequestIsCancelled(
        request: *mut abi::TRITONBACKEND_Request,
        is_cancelled: *mut bool,
    ) {
        write(is_cancelled, borrow(request)?.is_cancelled()?)
    }

    fn TRITONBACKEND_RequestCorrelationId(request: *mut abi::TRITONBACKEND_Request, id: *mut u64) {
        let request = borrow(request)?;
        match request.request()?.correlation_id {
            CorrelationId::Unsigned(number) => write(id, number),
            CorrelationId::Text(_) => Err(Error::invalid(format!(
                "{}correlation ID in request is not an unsigned int",
                prefix(request)
            ))),
        }
    }

    fn TRITONBACKEND_RequestCorrelationIdString(
        request: *mut abi::TRITONBACKEND_Request,
        id: *mut *const c_char,
    ) {
        let request = borrow(request)?;
        match request.correlation_text()? {
            Some(address) => write(id, address),
            None => Err(Error::invalid(format!(
                "{}correlation ID in request is not a string",
                prefix(request)
            ))),
        }
    }

    fn TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
        request: *mut abi::TRITONBACKEND_Request,
        timeout: *mut u64,
    ) {
        write(timeout, borrow(request)?.request()?.timeout_us)
    }

    fn TRITONBACKEND_RequestFlags(request: *mut abi::TRITONBACKEND_Request, flags: *mut u32) {
        write(flags, borrow(request)?.request()?.sequence_flags.bits())
    }

    fn TRITONBACKEND_RequestParameterCount(
        request: *mut abi::TRITONBACKEND_Request,
        count: *mut u32,
    ) {
        write(
            count,
            super::count(borrow(request)?.request()?.parameters.len())?,
        )
    }

    fn TRITONBACKEND_RequestParameter(
        request: *mut abi::TRITONBACKEND_Request,
        index: u32,
        key: *mut *const c_char,
        kind: *mut abi::TRITONSERVER_ParameterType,
        vvalue: *mut *const c_void,
    ) {
        write_parameter(
            borrow(request)?.parameters()?,
            "request",
            index,
            (key, kind, vvalue),
        )
    }

    fn TRITONBACKEND_RequestInputCount(request: *mut abi::TRITONBACKEND_Request, count: *mut u32) {
        write(count, super::count(borrow(request)?.inputs().len())?)
    }

    fn TRITONBACKEND_RequestInputName(
        request: *mut abi::TRITONBACKEND_Request,
        index: u32,
        input_name: *mut *const c_char,
    ) {
        write(input_name, std::ptr::null())?;
        write(input_name, input_at(borrow(request)?, index)?.name())
    }

    fn TRITONBACKEND_RequestInput(
        request: *mut abi::TRITONBACKEND_Request,
        name: *const c_char,
        input: *mut *mut abi::TRITONBACKEND_Input,
    ) {
        write(input, std::ptr::null_mut())?;
        let request = borrow(request)?;
        let name = text(name, "name")?;
        let found = request
            .inputs()
            .iter()
            .find(|input| &*input.input().name == name);
        let found = found.ok_or_else(|| {
            Error::invalid(format!(
                "{}unknown request input name {name}",
                prefix(request)
            ))
        })?;
        write(input, as_handle(found))
    }

    fn TRITONBACKEND_RequestInputByIndex(
        request: *mut abi::TRITONBACKEND_Request,
        index: u32,
        input: *mut *mut abi::TRITONBACKEND_Input,
    ) {
        write(input, as_handle(input_at(borrow(request)?, index)?))
    }

    fn TRITONBACKEND_RequestOutputCount(request: *mut abi::TRITONBACKEND_Request, count: *mut u32) {
        let handle = borrow(request)?;
        let request = handle.request()?;
        // Asking for none is asking for all, but for who only fills a place.
        let outputs = match request.requested_outputs.len() {
            0 if request.is_null => 0,
            0 => handle.facts()?.output_count(),
            some => some,
        };
        write(count, super::count(outputs)?)
    }

    fn TRITONBACKEND_RequestOutputName(
        request: *mut abi::TRITONBACKEND_Request,
        index: u32,
        output_name: *mut *const c_char,
    ) {
        write(output_name, std::ptr::null())?;
        let handle = borrow(request)?;
        let facts = handle.facts()?;
        let request = handle.request()?;
        let requested = &request.requested_outputs;
        let position = usize::try_from(index).ok();
        let (count, output) = if request.is_null {
            (0, None)
        } else if requested.is_empty() {
            (
                facts.output_count(),
                position.and_then(|rank| facts.output_at_rank(rank)),
            )
        } else {
            (
                requested.len(),
                position
                    .and_then(|position| requested.get(position))
                    .map(|output| usize::from(*output)),
            )
        };
        let name = output.and_then(|output| facts.output_name(output));
        let name = name.ok_or_else(|| out_of_bounds(handle, index, count, "requested outputs"))?;
        write(output_name, name.as_ptr())
    }

    fn TRITONBACKEND_RequestOutputBufferProperties(
        request: *mut abi::TRITONBACKEND_Request,
        name: *const c_char,
        byte_size: *mut usize,
        memory_type: *mut abi::TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let request = borrow(request)?;
        request.request()?;
        if let Some(embedded) = request.embedded() {
            let answer = embedded
                .allocator()
                .query(name, byte_size, memory_type, memory_type_id);
            return answer.unwrap_or_else(|| {
                Err(Error::unavailable(format!(
                    "{}Output properties are not available",
                    prefix(request)
                )))
            });
        }
        // As upstream's frontends: all buffers lie in host memory, and the size that the backend
        // has in mind stays as it is.
        write(memory_type, abi::TRITONSERVER_MEMORY_CPU)?;
        write(memory_type_id, 0)
    }

    fn TRITONBACKEND_RequestRelease(request: *mut abi::TRITONBACKEND_Request, release_flags: u32) {
        let borrowed = borrow(request)?;
        if release_flags & abi::TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 0 {
            borrowed.release()?;
        } else if borrowed.facts()?.is_iterative {
            borrowed.reschedule()?;
        } else {
            return Err(Error::invalid(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model \
                 is not configured to handle such a flag.",
            ));
        }
        // The backend's own reference, made when it got the handle; the first release alone gets
        // here.
        release(request);
        Ok(())
    }

    fn TRITONBACKEND_RequestTrace(
        request: *mut abi::TRITONBACKEND_Request,
        trace: *mut *mut abi::TRITONSERVER_InferenceTrace,
    ) {
        let request = borrow(request)?;
        request.request()?;
        // Null if the request is not traced.
        write(trace, request.trace_handle())
    }
}
