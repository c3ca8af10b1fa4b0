//! Inputs of a request. All bytes lie in host memory that is the same for every host policy.

use std::ffi::{c_char, c_void};

use conch_abi as abi;
use conch_engine::{Error, Input};

use super::export;
use crate::boundary::{as_handle, borrow, write, write_optional};
use crate::host::LentInput;

/// Where the caller wants an input's properties; each may be null.
struct PropertyTargets {
    name: *mut *const c_char,
    datatype: *mut abi::TRITONSERVER_DataType,
    shape: *mut *const i64,
    dims_count: *mut u32,
    byte_size: *mut u64,
    buffer_count: *mut u32,
}

/// # Safety
/// The input's request is live; the targets are null or writable.
unsafe fn properties(lent: &LentInput, targets: PropertyTargets) -> Result<(), Error> {
    // SAFETY: by this function's contract.
    unsafe {
        let input = lent.input();
        write_optional(targets.name, lent.name());
        write_optional(targets.datatype, input.data_type.number());
        write_optional(targets.shape, input.shape.as_ptr());
        write_optional(targets.dims_count, count(input.shape.len())?);
        write_optional(targets.byte_size, input.byte_size);
        write_optional(targets.buffer_count, count(input.chunks.len())?);
    }
    Ok(())
}

/// # Safety
/// As of `TRITONBACKEND_InputBuffer`, whose arguments these are.
unsafe fn buffer_at(
    input: &Input,
    index: u32,
    buffer: *mut *const c_void,
    buffer_byte_size: *mut u64,
    memory_type: *mut abi::TRITONSERVER_MemoryType,
    memory_type_id: *mut i64,
) -> Result<(), Error> {
    let chunk = usize::try_from(index)
        .ok()
        .and_then(|index| input.chunks.get(index));
    // Past the last buffer there is none: upstream does not call that an error either.
    let address = chunk.map_or(std::ptr::null(), |chunk| chunk.as_ptr());
    let place = chunk.map(|chunk| chunk.place()).unwrap_or_default();
    // SAFETY: writable or null by this function's contract. Lengths in memory fit 64 bits.
    unsafe {
        write(buffer, address.cast())?;
        write(
            buffer_byte_size,
            chunk.map_or(0, |chunk| chunk.len() as u64),
        )?;
        write(memory_type, place.kind as u32)?;
        write(memory_type_id, place.id)
    }
}

fn count(count: usize) -> Result<u32, Error> {
    u32::try_from(count).map_err(|_| Error::internal("more than 2^32 parts"))
}

export! {
    fn TRITONBACKEND_InputProperties(
        input: *mut abi::TRITONBACKEND_Input, name: *mut *const c_char, datatype: *mut abi::TRITONSERVER_DataType,
        shape: *mut *const i64, dims_count: *mut u32, byte_size: *mut u64, buffer_count: *mut u32,
    ) {
        properties(borrow(input)?, PropertyTargets { name, datatype, shape, dims_count, byte_size, buffer_count })
    }

    fn TRITONBACKEND_InputPropertiesForHostPolicy(
        input: *mut abi::TRITONBACKEND_Input, host_policy_name: *const c_char, name: *mut *const c_char,
        datatype: *mut abi::TRITONSERVER_DataType, shape: *mut *const i64, dims_count: *mut u32, byte_size: *mut u64,
        buffer_count: *mut u32,
    ) {
        let _ = host_policy_name;
        properties(borrow(input)?, PropertyTargets { name, datatype, shape, dims_count, byte_size, buffer_count })
    }

    fn TRITONBACKEND_InputBuffer(
        input: *mut abi::TRITONBACKEND_Input, index: u32, buffer: *mut *const c_void, buffer_byte_size: *mut u64,
        memory_type: *mut abi::TRITONSERVER_MemoryType, memory_type_id: *mut i64,
    ) {
        buffer_at(borrow(input)?.input(), index, buffer, buffer_byte_size, memory_type, memory_type_id)
    }

    fn TRITONBACKEND_InputBufferForHostPolicy(
        input: *mut abi::TRITONBACKEND_Input, host_policy_name: *const c_char, index: u32, buffer: *mut *const c_void,
        buffer_byte_size: *mut u64, memory_type: *mut abi::TRITONSERVER_MemoryType, memory_type_id: *mut i64,
    ) {
        let _ = host_policy_name;
        buffer_at(borrow(input)?.input(), index, buffer, buffer_byte_size, memory_type, memory_type_id)
    }

    fn TRITONBACKEND_InputBufferAttributes(
        input: *mut abi::TRITONBACKEND_Input, index: u32, buffer: *mut *const c_void,
        buffer_attributes: *mut *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        let lent = borrow(input)?;
        let chunk = usize::try_from(index).ok().and_then(|index| {
            Some((lent.input().chunks.get(index)?.as_ptr(), as_handle(lent.attributes().get(index)?)))
        });
        let (address, attributes) = chunk.unwrap_or((std::ptr::null(), std::ptr::null_mut()));
        write(buffer, address.cast())?;
        write(buffer_attributes, attributes)
    }
}
