//! JSON messages.

use std::ffi::c_char;

use conch_abi as abi;

use super::export;
use crate::boundary::{borrow, delete, slice, write, write_handle};
use crate::objects::JsonMessage;

export! {
    fn TRITONSERVER_MessageNewFromSerializedJson(
        message: *mut *mut abi::TRITONSERVER_Message,
        base: *const c_char,
        byte_size: usize,
    ) {
        // Not parsed here, as upstream: whoever reads the message says what is wrong with it.
        let bytes = slice(base.cast::<u8>(), byte_size, "base")?;
        write_handle(message, Box::new(JsonMessage::new(bytes)))
    }

    fn TRITONSERVER_MessageDelete(message: *mut abi::TRITONSERVER_Message) {
        delete(message)
    }

    fn TRITONSERVER_MessageSerializeToJson(
        message: *mut abi::TRITONSERVER_Message,
        base: *mut *const c_char,
        byte_size: *mut usize,
    ) {
        let bytes = borrow(message)?.as_bytes();
        write(base, bytes.as_ptr().cast())?;
        write(byte_size, bytes.len())
    }
}
