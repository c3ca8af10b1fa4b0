//! Blocks of the backend's, as objects: whatever refers to their memory refers to the object, and
//! the block goes back with the last reference.

use std::ffi::{c_int, c_void};

use crate::ffi::{self, BufferView, Pointer};
use crate::object::{Object, Python, Raised};
use crate::state::stub;
use crate::types::{self, TypeParts};

/// A block; as a buffer it is the whole segment.
pub(crate) struct Block {
    offset: u64,
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(stub) = stub() {
            stub.memory.finish(self.offset);
        }
    }
}

pub(crate) fn make_type(py: Python) -> Result<Object, Raised> {
    let get_buffer: unsafe extern "C" fn(Pointer, *mut BufferView, c_int) -> c_int = get_buffer;
    types::make::<Block>(
        py,
        TypeParts {
            name: c"conch_python_stub.RequestBlock",
            slots: vec![types::slot(ffi::SLOT_GET_BUFFER, get_buffer as *mut c_void)],
        },
    )
}

/// The object of a block that this process was sent.
pub(crate) fn new(py: Python, kind: &Object, offset: u64) -> Result<Object, Raised> {
    // SAFETY: the type is that of `make_type`.
    unsafe { types::instance(py, kind.pointer(), Block { offset }) }
}

unsafe extern "C" fn get_buffer(object: Pointer, view: *mut BufferView, flags: c_int) -> c_int {
    let (address, bytes) = stub().map_or((0, 0), |stub| {
        let memory = &stub.memory;
        (memory.requests_address(), memory.requests_bytes())
    });
    let address = std::ptr::with_exposed_provenance_mut(address);
    let bytes = isize::try_from(bytes).unwrap_or(0);
    // SAFETY: the interpreter's view; the segment is mapped until the process ends.
    unsafe { ffi::PyBuffer_FillInfo(view, object, address, bytes, 0, flags) }
}
