//! Requests made by embedders and backends.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use conch_abi as abi;
use conch_control::on_demand::LoadOutcome;
use conch_control::{OnDemand, Server};
use conch_engine::{Error, ModelVersion, ParameterValue};
use conch_memory::MemoryPlace;

use super::export;
use super::server::version_of;
use crate::boundary::{borrow, borrow_mut, c_string, delete, slice, text, write, write_handle};
use crate::embed::{
    CorrelationText, EmbedderCallback, InferenceRequest, MemoryChunk, RequestAllocator,
};
use crate::objects::kind_of;

/// The longest textual correlation id, in bytes, as upstream counts.
const CORRELATION_ID_BYTES_MAX: usize = 128;

/// A text parameter's value: an id or a name of the embedder's own.
///
/// # Safety
/// `value` is null or ends with NUL.
unsafe fn owned_text(value: *const c_char, name: &str) -> Result<std::ffi::CString, Error> {
    // SAFETY: by this function's contract.
    Ok(c_string(unsafe { text(value, name) }?))
}

/// # Safety
/// `base` has `byte_size` readable bytes for as long as the header demands.
unsafe fn chunk(
    base: *const c_void,
    byte_size: usize,
    memory_type: abi::TRITONSERVER_MemoryType,
    memory_type_id: i64,
) -> Result<MemoryChunk, Error> {
    if base.is_null() && byte_size > 0 {
        return Err(Error::invalid("base was nullptr"));
    }
    Ok(MemoryChunk {
        base,
        length: byte_size,
        place: MemoryPlace {
            kind: kind_of(memory_type)?,
            id: memory_type_id,
        },
        cuda_ipc_handle: None,
    })
}

/// The model version asked for. One that comes when it is asked for begins to do so; this caller's
/// thread, which may be an instance's, does not wait for it.
fn find(
    server: &Arc<Server>,
    name: &str,
    version: Option<i64>,
) -> Result<Arc<ModelVersion>, Error> {
    if let LoadOutcome::Coming(_) = server.ensure_loaded(name, version)? {
        return Err(OnDemand::later(name));
    }
    let snapshot = server.registry().snapshot();
    snapshot.find(name, version).cloned()
}

export! {
    fn TRITONSERVER_InferenceRequestNew(
        inference_request: *mut *mut abi::TRITONSERVER_InferenceRequest,
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
    ) {
        let server = borrow(server)?.server()?;
        let version = version_of(model_version);
        let model = find(&server, text(model_name, "model_name")?, version)?;
        write_handle(
            inference_request,
            Box::new(InferenceRequest::new(model, version)),
        )
    }

    fn TRITONSERVER_InferenceRequestDelete(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
    ) {
        delete(inference_request)
    }

    fn TRITONSERVER_InferenceRequestId(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        id: *mut *const c_char,
    ) {
        write(id, borrow(inference_request)?.id.as_ptr())
    }

    fn TRITONSERVER_InferenceRequestSetId(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        id: *const c_char,
    ) {
        borrow_mut(inference_request)?.id = owned_text(id, "id")?;
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestFlags(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        flags: *mut u32,
    ) {
        write(flags, borrow(inference_request)?.flags)
    }

    fn TRITONSERVER_InferenceRequestSetFlags(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        flags: u32,
    ) {
        borrow_mut(inference_request)?.flags = flags;
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestCorrelationId(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        correlation_id: *mut u64,
    ) {
        match &borrow(inference_request)?.correlation_id {
            CorrelationText::Unsigned(number) => write(correlation_id, *number),
            CorrelationText::Text(_) => Err(Error::invalid(
                "given request's correlation id is not an unsigned int",
            )),
        }
    }

    fn TRITONSERVER_InferenceRequestCorrelationIdString(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        correlation_id: *mut *const c_char,
    ) {
        match &borrow(inference_request)?.correlation_id {
            CorrelationText::Text(text) => write(correlation_id, text.as_ptr()),
            CorrelationText::Unsigned(_) => Err(Error::invalid(
                "given request's correlation id is not a string",
            )),
        }
    }

    fn TRITONSERVER_InferenceRequestSetCorrelationId(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        correlation_id: u64,
    ) {
        borrow_mut(inference_request)?.correlation_id = CorrelationText::Unsigned(correlation_id);
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestSetCorrelationIdString(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        correlation_id: *const c_char,
    ) {
        let request = borrow_mut(inference_request)?;
        let text = owned_text(correlation_id, "correlation_id")?;
        if text.as_bytes().len() > CORRELATION_ID_BYTES_MAX {
            return Err(Error::unsupported(
                "string correlation ID cannot be longer than 128 characters",
            ));
        }
        request.correlation_id = CorrelationText::Text(text);
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestCancel(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
    ) {
        borrow(inference_request)?.cancel()
    }

    fn TRITONSERVER_InferenceRequestIsCancelled(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        is_cancelled: *mut bool,
    ) {
        write(is_cancelled, borrow(inference_request)?.is_cancelled()?)
    }

    fn TRITONSERVER_InferenceRequestPriority(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        priority: *mut u32,
    ) {
        let wide = borrow(inference_request)?.priority();
        let narrow = u32::try_from(wide).map_err(|_| {
            Error::invalid(format!(
                "request priority overflows uint32_t, use \
                 TRITONSERVER_InferenceRequestPriorityUInt64, priority={wide}"
            ))
        })?;
        write(priority, narrow)
    }

    fn TRITONSERVER_InferenceRequestPriorityUInt64(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        priority: *mut u64,
    ) {
        write(priority, borrow(inference_request)?.priority())
    }

    fn TRITONSERVER_InferenceRequestSetPriority(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        priority: u32,
    ) {
        borrow_mut(inference_request)?.set_priority(u64::from(priority));
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestSetPriorityUInt64(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        priority: u64,
    ) {
        borrow_mut(inference_request)?.set_priority(priority);
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestTimeoutMicroseconds(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        timeout_us: *mut u64,
    ) {
        write(timeout_us, borrow(inference_request)?.timeout_us)
    }

    fn TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        timeout_us: u64,
    ) {
        borrow_mut(inference_request)?.timeout_us = timeout_us;
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestAddInput(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
        datatype: abi::TRITONSERVER_DataType,
        shape: *const i64,
        dim_count: u64,
    ) {
        let request = borrow_mut(inference_request)?;
        let count =
            usize::try_from(dim_count).map_err(|_| Error::invalid("too many dimensions"))?;
        request.add_input(text(name, "name")?, datatype, slice(shape, count, "shape")?)
    }

    fn TRITONSERVER_InferenceRequestAddRawInput(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        borrow_mut(inference_request)?.add_raw_input(text(name, "name")?)
    }

    fn TRITONSERVER_InferenceRequestRemoveInput(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        borrow_mut(inference_request)?.remove_input(text(name, "name")?)
    }

    fn TRITONSERVER_InferenceRequestRemoveAllInputs(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
    ) {
        borrow_mut(inference_request)?.remove_all_inputs();
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestAppendInputData(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        byte_size: usize,
        memory_type: abi::TRITONSERVER_MemoryType,
        memory_type_id: i64,
    ) {
        let request = borrow_mut(inference_request)?;
        request.append_data(
            text(name, "name")?,
            chunk(base, byte_size, memory_type, memory_type_id)?,
            None,
        )
    }

    fn TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        byte_size: usize,
        memory_type: abi::TRITONSERVER_MemoryType,
        memory_type_id: i64,
        host_policy_name: *const c_char,
    ) {
        let request = borrow_mut(inference_request)?;
        let policy = text(host_policy_name, "host_policy_name")?;
        let chunk = chunk(base, byte_size, memory_type, memory_type_id)?;
        request.append_data(text(name, "name")?, chunk, Some(policy))
    }

    fn TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        let request = borrow_mut(inference_request)?;
        let attributes = borrow(buffer_attributes)?.load();
        let bytes = usize::try_from(attributes.byte_size)
            .map_err(|_| Error::invalid("the buffer is too large"))?;
        let mut chunk = chunk(
            base,
            bytes,
            attributes.memory_type,
            attributes.memory_type_id,
        )?;
        chunk.cuda_ipc_handle = attributes.cuda_ipc_handle;
        request.append_data(text(name, "name")?, chunk, None)
    }

    fn TRITONSERVER_InferenceRequestRemoveAllInputData(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        borrow_mut(inference_request)?.remove_all_data(text(name, "name")?)
    }

    fn TRITONSERVER_InferenceRequestAddRequestedOutput(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        borrow_mut(inference_request)?.add_requested_output(text(name, "name")?)
    }

    fn TRITONSERVER_InferenceRequestRemoveRequestedOutput(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        borrow_mut(inference_request)?.remove_requested_output(text(name, "name")?);
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
    ) {
        borrow_mut(inference_request)?.remove_all_requested_outputs();
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestSetReleaseCallback(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        request_release_fn: abi::TRITONSERVER_InferenceRequestReleaseFn_t,
        request_release_userp: *mut c_void,
    ) {
        let request = borrow_mut(inference_request)?;
        let function =
            request_release_fn.ok_or_else(|| Error::invalid("request_release_fn was nullptr"))?;
        request.set_release(EmbedderCallback::new(function, request_release_userp));
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestSetResponseCallback(
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        response_allocator: *mut abi::TRITONSERVER_ResponseAllocator,
        response_allocator_userp: *mut c_void,
        response_fn: abi::TRITONSERVER_InferenceResponseCompleteFn_t,
        response_userp: *mut c_void,
    ) {
        let request = borrow_mut(inference_request)?;
        let function = response_fn.ok_or_else(|| Error::invalid("response_fn was nullptr"))?;
        let functions = Arc::clone(&borrow(response_allocator)?.functions);
        request.set_respond(
            RequestAllocator::new(response_allocator, functions, response_allocator_userp),
            EmbedderCallback::new(function, response_userp),
        );
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestSetStringParameter(
        request: *mut abi::TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: *const c_char,
    ) {
        let value = ParameterValue::Text(text(value, "value")?.into());
        borrow_mut(request)?.add_parameter(text(key, "key")?, value);
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestSetIntParameter(
        request: *mut abi::TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: i64,
    ) {
        borrow_mut(request)?.add_parameter(text(key, "key")?, ParameterValue::Int(value));
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestSetBoolParameter(
        request: *mut abi::TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: bool,
    ) {
        borrow_mut(request)?.add_parameter(text(key, "key")?, ParameterValue::Bool(value));
        Ok(())
    }

    fn TRITONSERVER_InferenceRequestSetDoubleParameter(
        request: *mut abi::TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: f64,
    ) {
        borrow_mut(request)?.add_parameter(text(key, "key")?, ParameterValue::Double(value));
        Ok(())
    }
}
