//! Traces of requests.

use std::ffi::{CStr, c_char, c_void};

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{borrow, c_string, delete, text, write, write_handle};
use crate::embed::{TraceFunctions, TraceHandle};

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

/// The functions of a new trace.
fn functions(
    activity: abi::TRITONSERVER_InferenceTraceActivityFn_t,
    tensor_activity: abi::TRITONSERVER_InferenceTraceTensorActivityFn_t,
    release: abi::TRITONSERVER_InferenceTraceReleaseFn_t,
    userp: *mut c_void,
) -> Result<TraceFunctions, Error> {
    if release.is_none() {
        return Err(Error::invalid("release_fn was nullptr"));
    }
    Ok(TraceFunctions {
        activity,
        tensor_activity,
        release,
        userp,
    })
}

export! {
    fn TRITONSERVER_InferenceTraceNew(
        trace: *mut *mut abi::TRITONSERVER_InferenceTrace,
        level: abi::TRITONSERVER_InferenceTraceLevel,
        parent_id: u64,
        activity_fn: abi::TRITONSERVER_InferenceTraceActivityFn_t,
        release_fn: abi::TRITONSERVER_InferenceTraceReleaseFn_t,
        trace_userp: *mut c_void,
    ) {
        let functions = functions(activity_fn, None, release_fn, trace_userp)?;
        write_handle(
            trace,
            Box::new(TraceHandle::new(level, parent_id, functions)),
        )
    }

    fn TRITONSERVER_InferenceTraceTensorNew(
        trace: *mut *mut abi::TRITONSERVER_InferenceTrace,
        level: abi::TRITONSERVER_InferenceTraceLevel,
        parent_id: u64,
        activity_fn: abi::TRITONSERVER_InferenceTraceActivityFn_t,
        tensor_activity_fn: abi::TRITONSERVER_InferenceTraceTensorActivityFn_t,
        release_fn: abi::TRITONSERVER_InferenceTraceReleaseFn_t,
        trace_userp: *mut c_void,
    ) {
        let functions = functions(activity_fn, tensor_activity_fn, release_fn, trace_userp)?;
        write_handle(
            trace,
            Box::new(TraceHandle::new(level, parent_id, functions)),
        )
    }

    fn TRITONSERVER_InferenceTraceReportActivity(
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        timestamp: u64,
        activity_name: *const c_char,
    ) {
        // Backends report without looking whether there is a trace.
        if trace.is_null() {
            return Ok(());
        }
        let name = c_string(text(activity_name, "activity_name")?);
        borrow(trace)?.report_custom(timestamp, &name);
        Ok(())
    }

    fn TRITONSERVER_InferenceTraceDelete(trace: *mut abi::TRITONSERVER_InferenceTrace) {
        delete(trace)
    }

    fn TRITONSERVER_InferenceTraceId(trace: *mut abi::TRITONSERVER_InferenceTrace, id: *mut u64) {
        write(id, borrow(trace)?.id)
    }

    fn TRITONSERVER_InferenceTraceParentId(
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        parent_id: *mut u64,
    ) {
        write(parent_id, borrow(trace)?.parent_id)
    }

    fn TRITONSERVER_InferenceTraceModelName(
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        model_name: *mut *const c_char,
    ) {
        write(model_name, borrow(trace)?.subject().model_name.as_ptr())
    }

    fn TRITONSERVER_InferenceTraceModelVersion(
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        model_version: *mut i64,
    ) {
        write(model_version, borrow(trace)?.subject().model_version)
    }

    fn TRITONSERVER_InferenceTraceRequestId(
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        request_id: *mut *const c_char,
    ) {
        write(request_id, borrow(trace)?.subject().request_id.as_ptr())
    }

    fn TRITONSERVER_InferenceTraceSpawnChildTrace(
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        child_trace: *mut *mut abi::TRITONSERVER_InferenceTrace,
    ) {
        if trace.is_null() {
            return write(child_trace, std::ptr::null_mut());
        }
        write_handle(child_trace, Box::new(borrow(trace)?.spawn()))
    }

    fn TRITONSERVER_InferenceTraceSetContext(
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        trace_context: *const c_char,
    ) {
        borrow(trace)?.subject().context = c_string(text(trace_context, "trace_context")?);
        Ok(())
    }

    fn TRITONSERVER_InferenceTraceContext(
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        trace_context: *mut *const c_char,
    ) {
        write(trace_context, borrow(trace)?.subject().context.as_ptr())
    }
}
