//! What a stub process shares memory with the Python backend by, and what makes and reads the
//! objects of requests on the hot path.
//!
//! It calls the interpreter that loaded it ([`ffi`]), by functions that every CPython since 3.9
//! has, so that one build serves them all; it is loaded by `ctypes` and is no extension module,
//! whose structures differ between builds.

mod block;
mod decode;
mod encode;
mod ffi;
mod hooks;
mod memory;
mod module;
mod object;
mod parent;
mod request_handle;
mod state;
mod tensor;
mod types;

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::memory::StubMemory;
use crate::object::Python;

/// Maps the two segments. The files are the caller's no more. 0 on success.
///
/// # Safety
/// Both are open files that nothing else closes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_open(requests: RawFd, responses: RawFd) -> i32 {
    // SAFETY: by this function's contract.
    let files = unsafe { [requests, responses].map(|file| OwnedFd::from_raw_fd(file)) };
    let [requests, responses] = files;
    let is_open = StubMemory::open(requests, responses).is_ok_and(state::connect);
    i32::from(!is_open)
}

/// Has this process, and its group, end with the process `parent`. Not 0 if that has ended.
#[unsafe(no_mangle)]
pub extern "C" fn conch_stub_follow(parent: i32) -> i32 {
    i32::from(!parent::follow(parent))
}

/// The dict of functions and types; a new reference. `head_bytes` is `object.__basicsize__`.
///
/// # Safety
/// The thread is attached to the interpreter (`ctypes.PyDLL`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_module(head_bytes: usize) -> *mut c_void {
    // SAFETY: by this function's contract.
    let py = unsafe { Python::attached() };
    state::result(module::module(py, head_bytes)).cast()
}
