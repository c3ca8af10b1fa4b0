//! Requests made by embedders and backends: for the in-process API, which is not there yet.

use std::ffi::{c_char, c_void};

use conch_abi as abi;

use super::unsupported;

unsupported! {
    fn TRITONSERVER_InferenceRequestNew(inference_request: *mut *mut abi::TRITONSERVER_InferenceRequest, server: *mut abi::TRITONSERVER_Server, model_name: *const c_char, model_version: i64);
    fn TRITONSERVER_InferenceRequestDelete(inference_request: *mut abi::TRITONSERVER_InferenceRequest);
    fn TRITONSERVER_InferenceRequestId(inference_request: *mut abi::TRITONSERVER_InferenceRequest, id: *mut *const c_char);
    fn TRITONSERVER_InferenceRequestSetId(inference_request: *mut abi::TRITONSERVER_InferenceRequest, id: *const c_char);
    fn TRITONSERVER_InferenceRequestFlags(inference_request: *mut abi::TRITONSERVER_InferenceRequest, flags: *mut u32);
    fn TRITONSERVER_InferenceRequestSetFlags(inference_request: *mut abi::TRITONSERVER_InferenceRequest, flags: u32);
    fn TRITONSERVER_InferenceRequestCorrelationId(inference_request: *mut abi::TRITONSERVER_InferenceRequest, correlation_id: *mut u64);
    fn TRITONSERVER_InferenceRequestCorrelationIdString(inference_request: *mut abi::TRITONSERVER_InferenceRequest, correlation_id: *mut *const c_char);
    fn TRITONSERVER_InferenceRequestSetCorrelationId(inference_request: *mut abi::TRITONSERVER_InferenceRequest, correlation_id: u64);
    fn TRITONSERVER_InferenceRequestSetCorrelationIdString(inference_request: *mut abi::TRITONSERVER_InferenceRequest, correlation_id: *const c_char);
    fn TRITONSERVER_InferenceRequestCancel(inference_request: *mut abi::TRITONSERVER_InferenceRequest);
    fn TRITONSERVER_InferenceRequestIsCancelled(inference_request: *mut abi::TRITONSERVER_InferenceRequest, is_cancelled: *mut bool);
    fn TRITONSERVER_InferenceRequestPriority(inference_request: *mut abi::TRITONSERVER_InferenceRequest, priority: *mut u32);
    fn TRITONSERVER_InferenceRequestPriorityUInt64(inference_request: *mut abi::TRITONSERVER_InferenceRequest, priority: *mut u64);
    fn TRITONSERVER_InferenceRequestSetPriority(inference_request: *mut abi::TRITONSERVER_InferenceRequest, priority: u32);
    fn TRITONSERVER_InferenceRequestSetPriorityUInt64(inference_request: *mut abi::TRITONSERVER_InferenceRequest, priority: u64);
    fn TRITONSERVER_InferenceRequestTimeoutMicroseconds(inference_request: *mut abi::TRITONSERVER_InferenceRequest, timeout_us: *mut u64);
    fn TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(inference_request: *mut abi::TRITONSERVER_InferenceRequest, timeout_us: u64);
    fn TRITONSERVER_InferenceRequestAddInput(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char, datatype: abi::TRITONSERVER_DataType, shape: *const i64, dim_count: u64);
    fn TRITONSERVER_InferenceRequestAddRawInput(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char);
    fn TRITONSERVER_InferenceRequestRemoveInput(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char);
    fn TRITONSERVER_InferenceRequestRemoveAllInputs(inference_request: *mut abi::TRITONSERVER_InferenceRequest);
    fn TRITONSERVER_InferenceRequestAppendInputData(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char, base: *const c_void, byte_size: usize, memory_type: abi::TRITONSERVER_MemoryType, memory_type_id: i64);
    fn TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char, base: *const c_void, byte_size: usize, memory_type: abi::TRITONSERVER_MemoryType, memory_type_id: i64, host_policy_name: *const c_char);
    fn TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char, base: *const c_void, buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes);
    fn TRITONSERVER_InferenceRequestRemoveAllInputData(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char);
    fn TRITONSERVER_InferenceRequestAddRequestedOutput(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char);
    fn TRITONSERVER_InferenceRequestRemoveRequestedOutput(inference_request: *mut abi::TRITONSERVER_InferenceRequest, name: *const c_char);
    fn TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(inference_request: *mut abi::TRITONSERVER_InferenceRequest);
    fn TRITONSERVER_InferenceRequestSetReleaseCallback(inference_request: *mut abi::TRITONSERVER_InferenceRequest, request_release_fn: abi::TRITONSERVER_InferenceRequestReleaseFn_t, request_release_userp: *mut c_void);
    fn TRITONSERVER_InferenceRequestSetResponseCallback(inference_request: *mut abi::TRITONSERVER_InferenceRequest, response_allocator: *mut abi::TRITONSERVER_ResponseAllocator, response_allocator_userp: *mut c_void, response_fn: abi::TRITONSERVER_InferenceResponseCompleteFn_t, response_userp: *mut c_void);
    fn TRITONSERVER_InferenceRequestSetStringParameter(request: *mut abi::TRITONSERVER_InferenceRequest, key: *const c_char, value: *const c_char);
    fn TRITONSERVER_InferenceRequestSetIntParameter(request: *mut abi::TRITONSERVER_InferenceRequest, key: *const c_char, value: i64);
    fn TRITONSERVER_InferenceRequestSetBoolParameter(request: *mut abi::TRITONSERVER_InferenceRequest, key: *const c_char, value: bool);
    fn TRITONSERVER_InferenceRequestSetDoubleParameter(request: *mut abi::TRITONSERVER_InferenceRequest, key: *const c_char, value: f64);
}
