//! Functions that conch has beyond Triton's C API; `include/conch/extension.h` is their header. A
//! plug-in that is to be loaded by Triton too looks them up by name (`dlsym`).

use std::ffi::c_void;

use crate::{
    TRITONBACKEND_Model, TRITONBACKEND_ModelInstance, TRITONBACKEND_Output, TRITONBACKEND_Request,
    TRITONSERVER_Error,
};

/// Bytes of the server's memory limit that a plug-in holds for itself.
#[repr(C)]
pub struct CONCH_MemoryCharge {
    _opaque: crate::Opaque,
}

/// A backend may export this pair as `CONCH_ModelInstanceExecuteBegin` and
/// `CONCH_ModelInstanceExecuteEnd`. The server then may call Begin instead of
/// TRITONBACKEND_ModelInstanceExecute, from any thread, one at a time. It is the same but for its
/// time: it blocks for `wait_ns` at most, and computes only shortly. What takes longer it leaves
/// open: it returns success with `is_open` true, and the backend keeps the requests. End is the
/// next call for the instance then, on its own thread; it goes on to the end of the execution, and
/// may return an error as Execute may.
pub type CONCH_ModelInstanceExecuteBeginFn = unsafe extern "C" fn(
    instance: *mut TRITONBACKEND_ModelInstance,
    requests: *mut *mut TRITONBACKEND_Request,
    request_count: u32,
    wait_ns: u64,
    is_open: *mut bool,
) -> *mut TRITONSERVER_Error;
/// See [`CONCH_ModelInstanceExecuteBeginFn`].
pub type CONCH_ModelInstanceExecuteEndFn =
    unsafe extern "C" fn(instance: *mut TRITONBACKEND_ModelInstance) -> *mut TRITONSERVER_Error;

/// A backend whose instances keep several batches in flight may export these three beside
/// TRITONBACKEND_ModelInstanceExecute, as `CONCH_ModelInstanceEnqueue`, `CONCH_ModelInstancePoll`
/// and `CONCH_ModelInstanceDepthMax`. The server then calls them instead of Execute, one at a time
/// per instance and from one thread. None of them waits for a device: that thread also drives other
/// instances.
///
/// Enqueue is as Execute, but returns once the work of the batch is enqueued. On success the
/// requests are the backend's; an error gives all of them back, as with Execute. At most so many
/// batches are in flight as DepthMax wrote.
pub type CONCH_ModelInstanceEnqueueFn = unsafe extern "C" fn(
    instance: *mut TRITONBACKEND_ModelInstance,
    requests: *mut *mut TRITONBACKEND_Request,
    request_count: u32,
) -> *mut TRITONSERVER_Error;
/// Answers and releases the requests of the batches that are done, in the order in which they were
/// enqueued, and writes how many batches are in flight after that. A batch that is done but behind
/// one that is not counts. After an error the server takes it that no batch was finished, and polls
/// again.
pub type CONCH_ModelInstancePollFn = unsafe extern "C" fn(
    instance: *mut TRITONBACKEND_ModelInstance,
    in_flight_count: *mut u32,
) -> *mut TRITONSERVER_Error;
/// Writes how many batches may be in flight at once; 0 for an instance that blocks, for which the
/// server calls Execute. Called once, after the instance was initialized.
pub type CONCH_ModelInstanceDepthMaxFn = unsafe extern "C" fn(
    instance: *mut TRITONBACKEND_ModelInstance,
    depth_max: *mut u32,
) -> *mut TRITONSERVER_Error;

unsafe extern "C" {
    /// Writes a new charge of 0 bytes, which outlives the model; the caller deletes it.
    pub fn CONCH_MemoryChargeNew(
        charge: *mut *mut CONCH_MemoryCharge,
        model: *mut TRITONBACKEND_Model,
    ) -> *mut TRITONSERVER_Error;
    /// Makes it a charge of so many bytes. UNAVAILABLE, and no change, if the limit has no room for
    /// them. One thread at a time.
    pub fn CONCH_MemoryChargeSet(
        charge: *mut CONCH_MemoryCharge,
        byte_size: u64,
    ) -> *mut TRITONSERVER_Error;
    /// Gives everything back.
    pub fn CONCH_MemoryChargeDelete(charge: *mut CONCH_MemoryCharge) -> *mut TRITONSERVER_Error;
    /// Has an output lie in host memory of the plug-in, instead of a buffer of
    /// TRITONBACKEND_OutputBuffer. The server only sends the bytes; should they change meanwhile,
    /// those that lie there at that moment. It calls `release` with `userp` once, on any thread,
    /// when it does not need them any more; `release` is quick, and the plug-in's library stays
    /// loaded until it returned. On an error nothing happened and `release` is not called:
    /// UNSUPPORTED if this output is to lie in a buffer of the server, as small ones are, and those
    /// that the server reads itself.
    pub fn CONCH_OutputLend(
        output: *mut TRITONBACKEND_Output,
        base: *const c_void,
        byte_size: u64,
        release: Option<unsafe extern "C" fn(userp: *mut c_void)>,
        userp: *mut c_void,
    ) -> *mut TRITONSERVER_Error;
}
