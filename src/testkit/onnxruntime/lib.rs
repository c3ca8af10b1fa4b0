//! A test double of an ONNX Runtime library for GPUs, on machines without one.
//!
//! It hands everything on to a real ONNX Runtime for CPUs, whose path is in
//! `CONCH_ORT_DOUBLE_LIBRARY`, but the execution providers CUDA and TensorRT, values on a device
//! and bindings: those are here. A run fetches inputs from the device on the session's stream, has
//! the real library compute them, and puts outputs back on that stream; one that is not to wait
//! leaves all of that on the stream. The device is the double of
//! the driver in `src/testkit/cuda`, which has to be loaded as `libcuda.so.1`.

mod api;
mod binding;
mod cuda;
mod enqueued;
mod io_binding;
mod log;
mod memory;
mod output_memory;
mod providers;
mod real;
mod record;
mod run;
mod session;
mod settings;
mod signature;

use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

use real::{ApiBase, RealLibrary};

#[unsafe(no_mangle)]
pub extern "C" fn OrtGetApiBase() -> *const ApiBase {
    static BASE: ApiBase = ApiBase {
        get_api,
        get_version,
    };
    &raw const BASE
}

/// The table of the oldest version that has all functions, whichever is asked for: newer ones only
/// add to it.
unsafe extern "C" fn get_api(_version: u32) -> *const *const c_void {
    static TABLE: OnceLock<Option<api::Table>> = OnceLock::new();
    let table = TABLE.get_or_init(|| RealLibrary::get().map(api::Table::over));
    table.as_ref().map_or(std::ptr::null(), api::Table::as_ptr)
}

unsafe extern "C" fn get_version() -> *const c_char {
    RealLibrary::get().map_or(c"0".as_ptr(), RealLibrary::version)
}
