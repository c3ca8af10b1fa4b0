//! States of sequences. Models with sequence batching are not served yet, so no request has any.

use std::ffi::{c_char, c_void};

use conch_abi as abi;
use conch_engine::Error;

use super::{export, unsupported};
use crate::boundary::{borrow, lossy_text, write};

export! {
    fn TRITONBACKEND_StateNew(
        state: *mut *mut abi::TRITONBACKEND_State, request: *mut abi::TRITONBACKEND_Request, name: *const c_char,
        datatype: abi::TRITONSERVER_DataType, shape: *const i64, dims_count: u32,
    ) {
        let _ = (datatype, shape, dims_count);
        write(state, std::ptr::null_mut())?;
        let model = &borrow(request)?.origin()?.model.name;
        Err(Error::invalid(format!(
            "unable to add state '{}'. State configuration is missing for model '{model}'.",
            lossy_text(name)
        )))
    }
}

unsupported! {
    fn TRITONBACKEND_StateUpdate(state: *mut abi::TRITONBACKEND_State);
    fn TRITONBACKEND_StateBuffer(state: *mut abi::TRITONBACKEND_State, buffer: *mut *mut c_void, buffer_byte_size: u64, memory_type: *mut abi::TRITONSERVER_MemoryType, memory_type_id: *mut i64);
    fn TRITONBACKEND_StateBufferAttributes(state: *mut abi::TRITONBACKEND_State, buffer_attributes: *mut *mut abi::TRITONSERVER_BufferAttributes);
}
