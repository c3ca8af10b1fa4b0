//! Responses to embedders and backends: for the in-process API, which is not there yet.

use std::ffi::{c_char, c_void};

use conch_abi as abi;

use super::unsupported;

unsupported! {
    fn TRITONSERVER_InferenceResponseDelete(inference_response: *mut abi::TRITONSERVER_InferenceResponse);
    fn TRITONSERVER_InferenceResponseError(inference_response: *mut abi::TRITONSERVER_InferenceResponse);
    fn TRITONSERVER_InferenceResponseModel(inference_response: *mut abi::TRITONSERVER_InferenceResponse, model_name: *mut *const c_char, model_version: *mut i64);
    fn TRITONSERVER_InferenceResponseId(inference_response: *mut abi::TRITONSERVER_InferenceResponse, request_id: *mut *const c_char);
    fn TRITONSERVER_InferenceResponseParameterCount(inference_response: *mut abi::TRITONSERVER_InferenceResponse, count: *mut u32);
    fn TRITONSERVER_InferenceResponseParameter(inference_response: *mut abi::TRITONSERVER_InferenceResponse, index: u32, name: *mut *const c_char, kind: *mut abi::TRITONSERVER_ParameterType, vvalue: *mut *const c_void);
    fn TRITONSERVER_InferenceResponseOutputCount(inference_response: *mut abi::TRITONSERVER_InferenceResponse, count: *mut u32);
    fn TRITONSERVER_InferenceResponseOutput(inference_response: *mut abi::TRITONSERVER_InferenceResponse, index: u32, name: *mut *const c_char, datatype: *mut abi::TRITONSERVER_DataType, shape: *mut *const i64, dim_count: *mut u64, base: *mut *const c_void, byte_size: *mut usize, memory_type: *mut abi::TRITONSERVER_MemoryType, memory_type_id: *mut i64, userp: *mut *mut c_void);
    fn TRITONSERVER_InferenceResponseOutputClassificationLabel(inference_response: *mut abi::TRITONSERVER_InferenceResponse, index: u32, class_index: usize, label: *mut *const c_char);
}
