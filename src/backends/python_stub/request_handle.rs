//! The right to answer a request. When it goes unused, the server is told.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ffi::Pointer;
use crate::object::{Object, Python, Raised};
use crate::state::stub;
use crate::types::{self, TypeParts};

/// Of one request that the server sent.
pub(crate) struct RequestHandle {
    number: u64,
    is_open: AtomicBool,
}

impl RequestHandle {
    /// The server has, or makes, the final response.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        let Some(stub) = stub() else { return };
        let message = format!(r#"{{"k":"drop_request","h":{}}}"#, self.number);
        // Without room the server drops it when this process ends.
        if let Some(offset) = stub.memory.write(message.as_bytes(), &[]) {
            stub.memory.post(offset);
        }
    }
}

pub(crate) fn make_type(py: Python) -> Result<Object, Raised> {
    types::make::<RequestHandle>(
        py,
        TypeParts {
            name: c"conch_python_stub.RequestHandle",
            slots: vec![
                types::methods(vec![types::method(c"close", close)]),
                types::getters(&[(c"is_open", is_open)]),
            ],
        },
    )
}

pub(crate) fn new(py: Python, kind: &Object, number: u64) -> Result<Object, Raised> {
    let request_handle = RequestHandle {
        number,
        is_open: AtomicBool::new(true),
    };
    // SAFETY: the type is that of `make_type`.
    unsafe { types::instance(py, kind.pointer(), request_handle) }
}

/// Closes a handle.
pub(crate) fn close_object(py: Python, kind: &Object, object: &Object) -> Result<(), Raised> {
    if py.is_instance(object, kind)? {
        // SAFETY: just checked.
        unsafe { types::value::<RequestHandle>(object.pointer()) }.close();
    }
    Ok(())
}

unsafe extern "C" fn close(this: Pointer, _: *const Pointer, _: isize) -> Pointer {
    // SAFETY: a method of the type; the thread is attached.
    let py = unsafe {
        types::value::<RequestHandle>(this).close();
        Python::attached()
    };
    py.none().into_pointer()
}

unsafe extern "C" fn is_open(this: Pointer, _: *mut std::ffi::c_void) -> Pointer {
    // SAFETY: as above.
    let (py, request_handle) = unsafe { (Python::attached(), types::value::<RequestHandle>(this)) };
    py.flag(request_handle.is_open.load(Ordering::Relaxed))
        .into_pointer()
}
