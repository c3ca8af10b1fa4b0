//! Calls into an embedder's functions, through the C++ trampolines of `callbacks.cc`: an exception
//! becomes an error.

use std::ffi::{c_char, c_void};

use conch_abi as abi;
use conch_engine::Error;
use conch_log as log;

use crate::boundary::accept;
use crate::guard::{CaughtException, caught};

type AllocatorCallbacks = abi::TRITONSERVER_ResponseAllocator;
type RawError = abi::TRITONSERVER_Error;

unsafe extern "C" {
    pub(super) fn conch_guard_allocate(
        caught: CaughtException,
        function: abi::TRITONSERVER_ResponseAllocatorAllocFn_t,
        allocator: *mut AllocatorCallbacks,
        name: *const c_char,
        bytes: usize,
        memory_type: u32,
        memory_type_id: i64,
        userp: *mut c_void,
        buffer: *mut *mut c_void,
        buffer_userp: *mut *mut c_void,
        actual_type: *mut u32,
        actual_type_id: *mut i64,
    ) -> *mut RawError;
    pub(super) fn conch_guard_query(
        caught: CaughtException,
        function: abi::TRITONSERVER_ResponseAllocatorQueryFn_t,
        allocator: *mut AllocatorCallbacks,
        userp: *mut c_void,
        name: *const c_char,
        bytes: *mut usize,
        memory_type: *mut u32,
        memory_type_id: *mut i64,
    ) -> *mut RawError;
    pub(super) fn conch_guard_attributes(
        caught: CaughtException,
        function: abi::TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
        allocator: *mut AllocatorCallbacks,
        name: *const c_char,
        attributes: *mut abi::TRITONSERVER_BufferAttributes,
        userp: *mut c_void,
        buffer_userp: *mut c_void,
    ) -> *mut RawError;
    pub(super) fn conch_guard_free(
        caught: CaughtException,
        function: abi::TRITONSERVER_ResponseAllocatorReleaseFn_t,
        allocator: *mut AllocatorCallbacks,
        buffer: *mut c_void,
        buffer_userp: *mut c_void,
        bytes: usize,
        memory_type: u32,
        memory_type_id: i64,
    ) -> *mut RawError;
    // Responses and releases share one shape: an object, flags, the caller's own pointer.
    fn conch_guard_complete(
        caught: CaughtException,
        function: unsafe extern "C" fn(*mut c_void, u32, *mut c_void),
        object: *mut c_void,
        flags: u32,
        userp: *mut c_void,
    ) -> *mut RawError;
    pub(super) fn conch_guard_activity(
        caught: CaughtException,
        function: abi::TRITONSERVER_InferenceTraceActivityFn_t,
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        activity: u32,
        timestamp_ns: u64,
        userp: *mut c_void,
    ) -> *mut RawError;
    pub(super) fn conch_guard_tensor_activity(
        caught: CaughtException,
        function: abi::TRITONSERVER_InferenceTraceTensorActivityFn_t,
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        activity: u32,
        name: *const c_char,
        data_type: u32,
        base: *const c_void,
        bytes: usize,
        shape: *const i64,
        dim_count: u64,
        memory_type: u32,
        memory_type_id: i64,
        userp: *mut c_void,
    ) -> *mut RawError;
    pub(super) fn conch_guard_trace_release(
        caught: CaughtException,
        function: abi::TRITONSERVER_InferenceTraceReleaseFn_t,
        trace: *mut abi::TRITONSERVER_InferenceTrace,
        userp: *mut c_void,
    ) -> *mut RawError;
}

/// What a function of the embedder returned; `what` failed is logged, as nobody else hears of it.
///
/// # Safety
/// `error` is null or owned, and not used again.
pub(super) unsafe fn log_failure(error: *mut RawError, what: &str) {
    // SAFETY: by this function's contract.
    if let Err(error) = unsafe { accept(error) } {
        log::error!("{what}: {error}");
    }
}

/// A function of the embedder with the pointer that it wants back.
pub(crate) struct EmbedderCallback<T> {
    function: unsafe extern "C" fn(*mut T, u32, *mut c_void),
    userp: *mut c_void,
}

impl<T> Clone for EmbedderCallback<T> {
    fn clone(&self) -> EmbedderCallback<T> {
        *self
    }
}

impl<T> Copy for EmbedderCallback<T> {}

// SAFETY: the embedder's functions may be called from any thread; the pointer is passed back, never
// followed.
unsafe impl<T> Send for EmbedderCallback<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for EmbedderCallback<T> {}

impl<T> EmbedderCallback<T> {
    pub(crate) fn new(
        function: unsafe extern "C" fn(*mut T, u32, *mut c_void),
        userp: *mut c_void,
    ) -> EmbedderCallback<T> {
        EmbedderCallback { function, userp }
    }

    /// Calls the function. What it throws is logged as `what`.
    ///
    /// # Safety
    /// `object` is null or what the function expects, and goes over to it.
    pub(crate) unsafe fn call(&self, object: *mut T, flags: u32, what: &str) {
        // SAFETY: the types differ only in what the pointer points to, which the calling convention
        // does not see.
        let function = unsafe {
            std::mem::transmute::<
                unsafe extern "C" fn(*mut T, u32, *mut c_void),
                unsafe extern "C" fn(*mut c_void, u32, *mut c_void),
            >(self.function)
        };
        // SAFETY: by this function's contract and the embedder's, who gave function and pointer
        // together.
        unsafe {
            let error = conch_guard_complete(caught, function, object.cast(), flags, self.userp);
            log_failure(error, what);
        }
    }
}

pub(super) use crate::guard::caught as on_exception;

/// The error of a call, if it failed.
///
/// # Safety
/// `error` is null or owned, and not used again.
pub(super) unsafe fn outcome(error: *mut RawError) -> Result<(), Error> {
    // SAFETY: by this function's contract.
    unsafe { accept(error) }
}
