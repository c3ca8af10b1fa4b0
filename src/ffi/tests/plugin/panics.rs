//! A backend in Rust without the SDK, whose entry points let their panics out (`C-unwind`):
//! compiled by the test with plain `rustc`, with a standard library of its own. It panics where the
//! names of model and instance say so, and in every execution.

#![allow(non_snake_case)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

type Error = *mut c_void;

unsafe extern "C" {
    fn TRITONBACKEND_ModelName(model: *mut c_void, name: *mut *const c_char) -> Error;
    fn TRITONBACKEND_ModelInstanceName(instance: *mut c_void, name: *mut *const c_char) -> Error;
}

/// On the stack of each call, to be dropped also when a panic passes.
struct Passing;

static BEGUN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);

impl Passing {
    fn begin() -> Passing {
        BEGUN.fetch_add(1, Ordering::Relaxed);
        Passing
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        ENDED.fetch_add(1, Ordering::Relaxed);
    }
}

/// For the test: how many calls there were, and how many of their stacks were left in an orderly
/// way.
#[unsafe(no_mangle)]
extern "C" fn plugin_journal() -> *const c_char {
    let (begun, ended) = (BEGUN.load(Ordering::Relaxed), ENDED.load(Ordering::Relaxed));
    CString::new(format!("{ended} of {begun}")).unwrap().into_raw()
}

/// Panics if `find` names something that is called `name`.
fn panic_if(
    name: &str,
    find: unsafe extern "C" fn(*mut c_void, *mut *const c_char) -> Error,
    object: *mut c_void,
) -> Error {
    let mut found = ptr::null();
    // SAFETY: the object is live, and the name that it gives lives as long.
    let found = unsafe {
        assert!(find(object, &raw mut found).is_null());
        CStr::from_ptr(found).to_bytes()
    };
    let _passing = Passing::begin();
    assert!(found != name.as_bytes(), "{name}");
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn TRITONBACKEND_ModelInitialize(model: *mut c_void) -> Error {
    // Quiet: these panics are meant. Once, since a thread whose panic got out counts as panicking
    // for good, and may set none.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
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
extern "C-unwind" fn TRITONBACKEND_ModelInstanceExecute(
    _: *mut c_void,
    _: *mut *mut c_void,
    count: u32,
) -> Error {
    let _passing = Passing::begin();
    panic!("{count} requests");
}
