//! Outputs of a response under construction.

use std::ffi::c_void;

use conch_abi as abi;

use super::export;
use crate::boundary::{as_handle, borrow, borrow_mut, write, write_optional};

export! {
    fn TRITONBACKEND_OutputBuffer(
        output: *mut abi::TRITONBACKEND_Output,
        buffer: *mut *mut c_void,
        buffer_byte_size: u64,
        memory_type: *mut abi::TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        write(buffer, std::ptr::null_mut())?;
        let wanted = (
            memory_type
                .as_ref()
                .copied()
                .unwrap_or(abi::TRITONSERVER_MEMORY_CPU),
            memory_type_id.as_ref().copied().unwrap_or(0),
        );
        let granted = borrow_mut(output)?.allocate(buffer_byte_size, wanted)?;
        write_optional(memory_type, granted.memory_type);
        write_optional(memory_type_id, granted.memory_type_id);
        write(buffer, granted.address)
    }

    fn TRITONBACKEND_OutputBufferAttributes(
        output: *mut abi::TRITONBACKEND_Output,
        buffer_attributes: *mut *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        write(buffer_attributes, as_handle(borrow(output)?.attributes()))
    }
}
