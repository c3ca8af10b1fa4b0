//! Functions that conch has beyond Triton's C API; `include/conch/extension.h` is their header. A
//! plug-in that is to be loaded by Triton too looks them up by name (`dlsym`).

use crate::{TRITONBACKEND_Model, TRITONSERVER_Error};

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
}
