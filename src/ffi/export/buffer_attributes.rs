//! Where a buffer lies.

use std::ffi::c_void;
use std::ptr;

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{borrow, borrow_mut, delete, give, write};
use crate::objects::{BufferAttributes, CudaIpcHandle, kind_of};

export! {
    fn TRITONSERVER_BufferAttributesNew(buffer_attributes: *mut *mut abi::TRITONSERVER_BufferAttributes) {
        give(buffer_attributes, Box::<BufferAttributes>::default())
    }

    fn TRITONSERVER_BufferAttributesDelete(buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes) {
        delete(buffer_attributes)
    }

    fn TRITONSERVER_BufferAttributesSetMemoryTypeId(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes, memory_type_id: i64,
    ) {
        borrow_mut(buffer_attributes)?.memory_type_id = memory_type_id;
        Ok(())
    }

    fn TRITONSERVER_BufferAttributesSetMemoryType(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes, memory_type: abi::TRITONSERVER_MemoryType,
    ) {
        borrow_mut(buffer_attributes)?.memory_type = kind_of(memory_type)? as u32;
        Ok(())
    }

    fn TRITONSERVER_BufferAttributesSetCudaIpcHandle(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes, cuda_ipc_handle: *mut c_void,
    ) {
        // Copied, as upstream: the caller's may go. None takes it away.
        let handle = cuda_ipc_handle.cast::<CudaIpcHandle>();
        let handle = if handle.is_null() { None } else { Some(handle.read_unaligned()) };
        borrow_mut(buffer_attributes)?.cuda_ipc_handle = handle;
        Ok(())
    }

    fn TRITONSERVER_BufferAttributesSetByteSize(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes, byte_size: usize,
    ) {
        borrow_mut(buffer_attributes)?.byte_size = byte_size as u64;
        Ok(())
    }

    fn TRITONSERVER_BufferAttributesMemoryTypeId(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes, memory_type_id: *mut i64,
    ) {
        write(memory_type_id, borrow(buffer_attributes)?.memory_type_id)
    }

    fn TRITONSERVER_BufferAttributesMemoryType(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes, memory_type: *mut abi::TRITONSERVER_MemoryType,
    ) {
        write(memory_type, borrow(buffer_attributes)?.memory_type)
    }

    fn TRITONSERVER_BufferAttributesCudaIpcHandle(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes, cuda_ipc_handle: *mut *mut c_void,
    ) {
        let handle = borrow(buffer_attributes)?.cuda_ipc_handle.as_ref();
        write(cuda_ipc_handle, handle.map_or(ptr::null_mut(), |handle| handle.as_ptr().cast_mut().cast()))
    }

    fn TRITONSERVER_BufferAttributesByteSize(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes, byte_size: *mut usize,
    ) {
        let bytes = borrow(buffer_attributes)?.byte_size;
        write(byte_size, usize::try_from(bytes).map_err(|_| Error::internal("buffer does not fit the address space"))?)
    }
}
