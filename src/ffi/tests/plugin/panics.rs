//! A backend in Rust without the SDK, whose entry points let their panics out (`C-unwind`): compiled by the test with plain `rustc`,
//! with a standard library of its own. It panics where the names of model and instance say so, and in every execution.

#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

type Error = *mut c_void;

unsafe extern "C" {
    fn TRITONBACKEND_ModelName(model: *mut c_void, name: *mut *const c_char) -> Error;
    fn TRITONBACKEND_ModelInstanceName(instance: *mut c_void, name: *mut *const c_char) -> Error;
}

/// Says that something is dropped while the panic passes: unwinding works all the way.
struct Passed;

impl Drop for Passed {
    fn drop(&mut self) {
        eprintln!("a panic passes");
    }
}

/// Panics if `find` names something that is called `name`.
fn panic_if(name: &str, find: unsafe extern "C" fn(*mut c_void, *mut *const c_char) -> Error, object: *mut c_void) -> Error {
    let mut found = ptr::null();
    // SAFETY: the object is live, and the name that it gives lives as long.
    let found = unsafe {
        assert!(find(object, &raw mut found).is_null());
        CStr::from_ptr(found).to_bytes()
    };
    let _passed = Passed;
    assert!(found != name.as_bytes(), "{name}");
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn TRITONBACKEND_ModelInitialize(model: *mut c_void) -> Error {
    panic_if("panic_model", TRITONBACKEND_ModelName, model)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn TRITONBACKEND_ModelInstanceInitialize(instance: *mut c_void) -> Error {
    panic_if("panic_instance", TRITONBACKEND_ModelInstanceName, instance)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn TRITONBACKEND_ModelInstanceFinalize(instance: *mut c_void) -> Error {
    panic_if("panic_end", TRITONBACKEND_ModelInstanceName, instance)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn TRITONBACKEND_ModelInstanceExecute(_: *mut c_void, _: *mut *mut c_void, count: u32) -> Error {
    let _passed = Passed;
    panic!("{count} requests");
}
