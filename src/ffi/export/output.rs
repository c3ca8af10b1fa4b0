//! Outputs of a response under construction.

use std::ffi::c_void;

use conch_abi as abi;

use super::export;
use crate::boundary::{as_handle, borrow, borrow_mut, write, write_optional};

export! {
    fn TRITONBACKEND_OutputBuffer(
        output: *mut abi::TRITONBACKEND_Output, buffer: *mut *mut c_void, buffer_byte_size: u64,
        memory_type: *mut abi::TRITONSERVER_MemoryType, memory_type_id: *mut i64,
    ) {
        write(buffer, std::ptr::null_mut())?;
        let address = borrow_mut(output)?.allocate(buffer_byte_size)?;
        // Whatever the backend prefers: outputs leave through sockets, so they lie in host memory.
        write_optional(memory_type, abi::TRITONSERVER_MEMORY_CPU);
        write_optional(memory_type_id, 0);
        write(buffer, address)
    }

    fn TRITONBACKEND_OutputBufferAttributes(
        output: *mut abi::TRITONBACKEND_Output, buffer_attributes: *mut *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        write(buffer_attributes, as_handle(borrow(output)?.attributes()))
    }
}
