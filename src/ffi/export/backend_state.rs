//! The implicit states of a request's sequence.

use std::ffi::{c_char, c_void};

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{as_handle, borrow, slice, text, write, write_optional};

export! {
    fn TRITONBACKEND_StateNew(
        state: *mut *mut abi::TRITONBACKEND_State,
        request: *mut abi::TRITONBACKEND_Request,
        name: *const c_char,
        datatype: abi::TRITONSERVER_DataType,
        shape: *const i64,
        dims_count: u32,
    ) {
        write(state, std::ptr::null_mut())?;
        let count =
            usize::try_from(dims_count).map_err(|_| Error::invalid("too many dimensions"))?;
        let made =
            borrow(request)?.state(text(name, "name")?, datatype, slice(shape, count, "shape")?)?;
        write(state, made)
    }

    fn TRITONBACKEND_StateUpdate(state: *mut abi::TRITONBACKEND_State) {
        borrow(state)?.update()
    }

    fn TRITONBACKEND_StateBuffer(
        state: *mut abi::TRITONBACKEND_State,
        buffer: *mut *mut c_void,
        buffer_byte_size: u64,
        memory_type: *mut abi::TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        write(buffer, std::ptr::null_mut())?;
        let (address, place) = borrow(state)?.buffer(buffer_byte_size)?;
        // Whatever the backend prefers: where a state lies is the model's configuration.
        write_optional(memory_type, place.kind as u32);
        write_optional(memory_type_id, place.id);
        write(buffer, address)
    }

    fn TRITONBACKEND_StateBufferAttributes(
        state: *mut abi::TRITONBACKEND_State,
        buffer_attributes: *mut *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        write(buffer_attributes, as_handle(borrow(state)?.attributes()))
    }
}
