//! Functions that conch has beyond Triton's C API; `include/conch/extension.h` is their header. A
//! plug-in that is to be loaded by Triton too looks them up by name (`dlsym`).

use std::ffi::c_void;

use crate::{TRITONBACKEND_Model, TRITONBACKEND_Output, TRITONSERVER_Error};

/// Bytes of the server's memory limit that a plug-in holds for itself.
#[repr(C)]
pub struct CONCH_MemoryCharge {
    _opaque: crate::Opaque,
}

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
