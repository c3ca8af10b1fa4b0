//! Responses and response factories.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::Arc;

use conch_abi as abi;
use conch_engine::{Error, ParameterValue};

use super::export;
use crate::boundary::{borrow, borrow_mut, delete, slice, take, text, write, write_handle};
use crate::host::{
    BackendOutput, BackendRequest, BackendResponse, ResponseFactory, ResponseSender,
};

/// Another reference to the backend request behind a request's handle.
///
/// # Safety
/// `request` is null or live.
unsafe fn share(request: *mut abi::TRITONBACKEND_Request) -> Result<Arc<BackendRequest>, Error> {
    // SAFETY: by this function's contract.
    let request: NonNull<BackendRequest> = NonNull::from(unsafe { borrow(request) }?);
    // SAFETY: handles of requests come from `Arc::into_raw`, and a live one still owns its count.
    unsafe {
        Arc::increment_strong_count(request.as_ptr());
        Ok(Arc::from_raw(request.as_ptr()))
    }
}

/// # Safety
/// `name` ends with NUL; the targets are writable and may not be null.
unsafe fn describe(
    output: &BackendOutput,
    datatype: *mut abi::TRITONSERVER_DataType,
    shape: *mut *const i64,
    dim_count: *mut u64,
) -> Result<(), Error> {
    // SAFETY: by this function's contract; null is refused inside. Lengths in memory fit 64 bits.
    unsafe {
        write(datatype, output.data_type().number())?;
        write(shape, output.shape().as_ptr())?;
        write(dim_count, output.shape().len() as u64)
    }
}

fn is_final(flags: u32) -> bool {
    flags & abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL != 0
}

export! {
    fn TRITONBACKEND_ResponseFactoryNew(
        factory: *mut *mut abi::TRITONBACKEND_ResponseFactory,
        request: *mut abi::TRITONBACKEND_Request,
    ) {
        let sender = ResponseSender::open(share(request)?)?;
        write_handle(factory, Box::new(ResponseFactory::new(sender)))
    }

    fn TRITONBACKEND_ResponseFactoryDelete(factory: *mut abi::TRITONBACKEND_ResponseFactory) {
        delete(factory)
    }

    fn TRITONBACKEND_ResponseFactoryIsCancelled(
        factory: *mut abi::TRITONBACKEND_ResponseFactory,
        is_cancelled: *mut bool,
    ) {
        write(
            is_cancelled,
            borrow(factory)?.sender.request().is_cancelled()?,
        )
    }

    fn TRITONBACKEND_ResponseFactorySendFlags(
        factory: *mut abi::TRITONBACKEND_ResponseFactory,
        send_flags: u32,
    ) {
        borrow(factory)?
            .sender
            .send(None, is_final(send_flags), None)
    }

    fn TRITONBACKEND_ResponseNew(
        response: *mut *mut abi::TRITONBACKEND_Response,
        request: *mut abi::TRITONBACKEND_Request,
    ) {
        write_handle(response, BackendResponse::begin(share(request)?)?)
    }

    fn TRITONBACKEND_ResponseNewFromFactory(
        response: *mut *mut abi::TRITONBACKEND_Response,
        factory: *mut abi::TRITONBACKEND_ResponseFactory,
    ) {
        write_handle(
            response,
            BackendResponse::begin(Arc::clone(borrow(factory)?.sender.request()))?,
        )
    }

    fn TRITONBACKEND_ResponseDelete(response: *mut abi::TRITONBACKEND_Response) {
        delete(response)
    }

    fn TRITONBACKEND_ResponseSetStringParameter(
        response: *mut abi::TRITONBACKEND_Response,
        name: *const c_char,
        value: *const c_char,
    ) {
        let value = ParameterValue::Text(text(value, "value")?.into());
        borrow_mut(response)?.set_parameter(text(name, "name")?, value);
        Ok(())
    }

    fn TRITONBACKEND_ResponseSetIntParameter(
        response: *mut abi::TRITONBACKEND_Response,
        name: *const c_char,
        value: i64,
    ) {
        borrow_mut(response)?.set_parameter(text(name, "name")?, ParameterValue::Int(value));
        Ok(())
    }

    fn TRITONBACKEND_ResponseSetBoolParameter(
        response: *mut abi::TRITONBACKEND_Response,
        name: *const c_char,
        value: bool,
    ) {
        borrow_mut(response)?.set_parameter(text(name, "name")?, ParameterValue::Bool(value));
        Ok(())
    }

    fn TRITONBACKEND_ResponseSetDoubleParameter(
        response: *mut abi::TRITONBACKEND_Response,
        name: *const c_char,
        value: f64,
    ) {
        borrow_mut(response)?.set_parameter(text(name, "name")?, ParameterValue::Double(value));
        Ok(())
    }

    fn TRITONBACKEND_ResponseOutput(
        response: *mut abi::TRITONBACKEND_Response,
        output: *mut *mut abi::TRITONBACKEND_Output,
        name: *const c_char,
        datatype: abi::TRITONSERVER_DataType,
        shape: *const i64,
        dims_count: u32,
    ) {
        let answer = borrow_mut(response)?;
        write(output, std::ptr::null_mut())?;
        let count =
            usize::try_from(dims_count).map_err(|_| Error::invalid("too many dimensions"))?;
        let made =
            answer.add_output(text(name, "name")?, datatype, slice(shape, count, "shape")?)?;
        write(output, std::ptr::from_mut(made).cast())
    }

    fn TRITONBACKEND_ResponseSend(
        response: *mut abi::TRITONBACKEND_Response,
        send_flags: u32,
        error: *mut abi::TRITONSERVER_Error,
    ) {
        let answer = take(response)?;
        // The error stays the caller's.
        let error = if error.is_null() {
            None
        } else {
            Some(borrow(error)?.to_error())
        };
        answer.send(error, is_final(send_flags))
    }

    fn TRITONBACKEND_InferenceResponseOutputByName(
        response: *mut abi::TRITONBACKEND_Response,
        name: *const c_char,
        datatype: *mut abi::TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
    ) {
        let name = text(name, "name")?;
        let found = borrow(response)?
            .outputs()
            .iter()
            .find(|output| output.c_name().to_bytes() == name.as_bytes());
        let output =
            found.ok_or_else(|| Error::not_found(format!("Output name {name}not found.")))?;
        describe(output, datatype, shape, dim_count)
    }

    fn TRITONBACKEND_InferenceResponseOutput(
        response: *mut abi::TRITONBACKEND_Response,
        index: u32,
        name: *mut *const c_char,
        datatype: *mut abi::TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
    ) {
        let outputs = borrow(response)?.outputs();
        let Some(output) = usize::try_from(index)
            .ok()
            .and_then(|index| outputs.get(index))
        else {
            let count = outputs.len();
            return Err(Error::invalid(format!(
                "out of bounds index {index}: response has {count} outputs"
            )));
        };
        write(name, output.c_name().as_ptr())?;
        describe(output, datatype, shape, dim_count)
    }
}
