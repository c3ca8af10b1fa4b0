//! Traces: names exist, traces do not yet.

use std::ffi::{CStr, c_char, c_void};

use conch_abi as abi;

use super::unsupported;

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_InferenceTraceLevelString(
    level: abi::TRITONSERVER_InferenceTraceLevel,
) -> *const c_char {
    let name: &'static CStr = match level {
        abi::TRITONSERVER_TRACE_LEVEL_DISABLED => c"DISABLED",
        abi::TRITONSERVER_TRACE_LEVEL_MIN => c"MIN",
        abi::TRITONSERVER_TRACE_LEVEL_MAX => c"MAX",
        abi::TRITONSERVER_TRACE_LEVEL_TIMESTAMPS => c"TIMESTAMPS",
        abi::TRITONSERVER_TRACE_LEVEL_TENSORS => c"TENSORS",
        _ => c"<unknown>",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_InferenceTraceActivityString(
    activity: abi::TRITONSERVER_InferenceTraceActivity,
) -> *const c_char {
    let name: &'static CStr = match activity {
        abi::TRITONSERVER_TRACE_REQUEST_START => c"REQUEST_START",
        abi::TRITONSERVER_TRACE_QUEUE_START => c"QUEUE_START",
        abi::TRITONSERVER_TRACE_COMPUTE_START => c"COMPUTE_START",
        abi::TRITONSERVER_TRACE_COMPUTE_INPUT_END => c"COMPUTE_INPUT_END",
        abi::TRITONSERVER_TRACE_COMPUTE_OUTPUT_START => c"COMPUTE_OUTPUT_START",
        abi::TRITONSERVER_TRACE_COMPUTE_END => c"COMPUTE_END",
        abi::TRITONSERVER_TRACE_REQUEST_END => c"REQUEST_END",
        abi::TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT => c"TENSOR_QUEUE_INPUT",
        abi::TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT => c"TENSOR_BACKEND_INPUT",
        abi::TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT => c"TENSOR_BACKEND_OUTPUT",
        abi::TRITONSERVER_TRACE_CUSTOM_ACTIVITY => c"CUSTOM_ACTIVITY",
        _ => c"<unknown>",
    };
    name.as_ptr()
}

unsupported! {
    fn TRITONSERVER_InferenceTraceNew(trace: *mut *mut abi::TRITONSERVER_InferenceTrace, level: abi::TRITONSERVER_InferenceTraceLevel, parent_id: u64, activity_fn: abi::TRITONSERVER_InferenceTraceActivityFn_t, release_fn: abi::TRITONSERVER_InferenceTraceReleaseFn_t, trace_userp: *mut c_void);
    fn TRITONSERVER_InferenceTraceTensorNew(trace: *mut *mut abi::TRITONSERVER_InferenceTrace, level: abi::TRITONSERVER_InferenceTraceLevel, parent_id: u64, activity_fn: abi::TRITONSERVER_InferenceTraceActivityFn_t, tensor_activity_fn: abi::TRITONSERVER_InferenceTraceTensorActivityFn_t, release_fn: abi::TRITONSERVER_InferenceTraceReleaseFn_t, trace_userp: *mut c_void);
    fn TRITONSERVER_InferenceTraceReportActivity(trace: *mut abi::TRITONSERVER_InferenceTrace, timestamp: u64, activity_name: *const c_char);
    fn TRITONSERVER_InferenceTraceDelete(trace: *mut abi::TRITONSERVER_InferenceTrace);
    fn TRITONSERVER_InferenceTraceId(trace: *mut abi::TRITONSERVER_InferenceTrace, id: *mut u64);
    fn TRITONSERVER_InferenceTraceParentId(trace: *mut abi::TRITONSERVER_InferenceTrace, parent_id: *mut u64);
    fn TRITONSERVER_InferenceTraceModelName(trace: *mut abi::TRITONSERVER_InferenceTrace, model_name: *mut *const c_char);
    fn TRITONSERVER_InferenceTraceModelVersion(trace: *mut abi::TRITONSERVER_InferenceTrace, model_version: *mut i64);
    fn TRITONSERVER_InferenceTraceRequestId(trace: *mut abi::TRITONSERVER_InferenceTrace, request_id: *mut *const c_char);
    fn TRITONSERVER_InferenceTraceSpawnChildTrace(trace: *mut abi::TRITONSERVER_InferenceTrace, child_trace: *mut *mut abi::TRITONSERVER_InferenceTrace);
    fn TRITONSERVER_InferenceTraceSetContext(trace: *mut abi::TRITONSERVER_InferenceTrace, trace_context: *const c_char);
    fn TRITONSERVER_InferenceTraceContext(trace: *mut abi::TRITONSERVER_InferenceTrace, trace_context: *mut *const c_char);
}
