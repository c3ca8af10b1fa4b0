//! `TRITONSERVER_BufferAttributes`: memory type and id of a buffer.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{borrow, delete, write, write_handle};
use crate::objects::{BufferAttributes, CudaIpcHandle, kind_of};

export! {
    fn TRITONSERVER_BufferAttributesNew(
        buffer_attributes: *mut *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        write_handle(buffer_attributes, Box::<BufferAttributes>::default())
    }

    fn TRITONSERVER_BufferAttributesDelete(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        delete(buffer_attributes)
    }

    fn TRITONSERVER_BufferAttributesSetMemoryTypeId(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
        memory_type_id: i64,
    ) {
        borrow(buffer_attributes)?
            .memory_type_id
            .store(memory_type_id, Relaxed);
        Ok(())
    }

    fn TRITONSERVER_BufferAttributesSetMemoryType(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
        memory_type: abi::TRITONSERVER_MemoryType,
    ) {
        borrow(buffer_attributes)?
            .memory_type
            .store(kind_of(memory_type)? as u32, Relaxed);
        Ok(())
    }

    fn TRITONSERVER_BufferAttributesSetCudaIpcHandle(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
        cuda_ipc_handle: *mut c_void,
    ) {
        // Copied, as upstream: the caller's may go. None takes it away.
        let handle = cuda_ipc_handle.cast::<CudaIpcHandle>();
        let handle = if handle.is_null() {
            None
        } else {
            Some(handle.read_unaligned())
        };
        borrow(buffer_attributes)?.set_cuda_ipc_handle(handle);
        Ok(())
    }

    fn TRITONSERVER_BufferAttributesSetByteSize(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
        byte_size: usize,
    ) {
        borrow(buffer_attributes)?
            .byte_size
            .store(byte_size as u64, Relaxed);
        Ok(())
    }

    fn TRITONSERVER_BufferAttributesMemoryTypeId(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
        memory_type_id: *mut i64,
    ) {
        write(
            memory_type_id,
            borrow(buffer_attributes)?.memory_type_id.load(Relaxed),
        )
    }

    fn TRITONSERVER_BufferAttributesMemoryType(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
        memory_type: *mut abi::TRITONSERVER_MemoryType,
    ) {
        write(
            memory_type,
            borrow(buffer_attributes)?.memory_type.load(Relaxed),
        )
    }

    fn TRITONSERVER_BufferAttributesCudaIpcHandle(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
        cuda_ipc_handle: *mut *mut c_void,
    ) {
        write(
            cuda_ipc_handle,
            borrow(buffer_attributes)?.cuda_ipc_handle(),
        )
    }

    fn TRITONSERVER_BufferAttributesByteSize(
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
        byte_size: *mut usize,
    ) {
        let bytes = borrow(buffer_attributes)?.byte_size.load(Relaxed);
        write(
            byte_size,
            usize::try_from(bytes)
                .map_err(|_| Error::internal("buffer does not fit the address space"))?,
        )
    }
}
