//! Inputs of a request. Their bytes are the same for every host policy, unless an embedder gave
//! other ones for some.

use std::ffi::{c_char, c_void};

use conch_abi as abi;
use conch_engine::Error;
use conch_engine::gpus::GpuHost;
use conch_memory::ByteView;

use super::export;
use crate::boundary::{as_handle, borrow, text, write, write_optional};
use crate::host::BackendInput;

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
unsafe fn properties(
    source: &BackendInput,
    policy: Option<&[ByteView]>,
    targets: PropertyTargets,
) -> Result<(), Error> {
    // SAFETY: by this function's contract.
    unsafe {
        let input = source.input();
        let byte_size = match policy {
            Some(chunks) => chunks.iter().map(|chunk| chunk.len() as u64).sum(),
            None => input.byte_size,
        };
        let chunks = policy.unwrap_or(&input.chunks);
        write_optional(targets.name, source.name());
        write_optional(targets.datatype, input.data_type.number());
        write_optional(targets.shape, input.shape.as_ptr());
        write_optional(targets.dims_count, count(input.shape.len())?);
        write_optional(targets.byte_size, byte_size);
        write_optional(targets.buffer_count, count(chunks.len())?);
    }
    Ok(())
}

/// Buffer `index`; none past the last, which upstream does not call an error either. A buffer on a
/// GPU is copied to the host for a backend that prefers to read there: many never look at where it
/// is.
///
/// # Errors
/// Those of the copy.
///
/// # Safety
/// The input's request is live; `preferred` is null or readable.
#[inline]
unsafe fn chunk_at(
    source: &BackendInput,
    index: u32,
    preferred: *const abi::TRITONSERVER_MemoryType,
) -> Result<Option<&ByteView>, Error> {
    let Ok(index) = usize::try_from(index) else {
        return Ok(None);
    };
    // SAFETY: by this function's contract.
    match unsafe { source.input() }.chunks.get(index) {
        Some(chunk) if !chunk.place().is_host() => {
            // SAFETY: as above.
            unsafe { readable(source, index, chunk, preferred.as_ref().copied()) }
        }
        chunk => Ok(chunk),
    }
}

/// A buffer on a GPU as the backend reads it.
///
/// # Errors
/// Those of the copy.
///
/// # Safety
/// As of [`chunk_at`].
#[cold]
unsafe fn readable<'s>(
    source: &'s BackendInput,
    index: usize,
    chunk: &'s ByteView,
    preferred: Option<abi::TRITONSERVER_MemoryType>,
) -> Result<Option<&'s ByteView>, Error> {
    if preferred == Some(abi::TRITONSERVER_MEMORY_GPU) || !GpuHost::is_in_use() {
        return Ok(Some(chunk));
    }
    // SAFETY: by this function's contract.
    unsafe { source.host_copy(index) }
}

/// # Safety
/// As of `TRITONBACKEND_InputBuffer`, whose arguments these are.
#[inline]
unsafe fn buffer_of(
    chunk: Option<&ByteView>,
    buffer: *mut *const c_void,
    buffer_byte_size: *mut u64,
    memory_type: *mut abi::TRITONSERVER_MemoryType,
    memory_type_id: *mut i64,
) -> Result<(), Error> {
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

/// The buffers that an embedder gave for a host policy; none: the common ones hold.
///
/// # Safety
/// `host_policy_name` is null or ends with NUL.
unsafe fn policy_chunks(
    source: &BackendInput,
    host_policy_name: *const c_char,
) -> Result<Option<&[ByteView]>, Error> {
    let Some(extra) = source.extra() else {
        return Ok(None);
    };
    // SAFETY: by this function's contract.
    let wanted = unsafe { text(host_policy_name, "host_policy_name") }?;
    let found = extra
        .policies
        .iter()
        .find(|(policy, _)| &**policy == wanted);
    Ok(found.map(|(_, chunks)| &**chunks))
}

fn count(count: usize) -> Result<u32, Error> {
    u32::try_from(count).map_err(|_| Error::internal("more than 2^32 parts"))
}

export! {
    fn TRITONBACKEND_InputProperties(
        input: *mut abi::TRITONBACKEND_Input,
        name: *mut *const c_char,
        datatype: *mut abi::TRITONSERVER_DataType,
        shape: *mut *const i64,
        dims_count: *mut u32,
        byte_size: *mut u64,
        buffer_count: *mut u32,
    ) {
        properties(
            borrow(input)?,
            None,
            PropertyTargets {
                name,
                datatype,
                shape,
                dims_count,
                byte_size,
                buffer_count,
            },
        )
    }

    fn TRITONBACKEND_InputPropertiesForHostPolicy(
        input: *mut abi::TRITONBACKEND_Input,
        host_policy_name: *const c_char,
        name: *mut *const c_char,
        datatype: *mut abi::TRITONSERVER_DataType,
        shape: *mut *const i64,
        dims_count: *mut u32,
        byte_size: *mut u64,
        buffer_count: *mut u32,
    ) {
        let source = borrow(input)?;
        let policy = policy_chunks(source, host_policy_name)?;
        properties(
            source,
            policy,
            PropertyTargets {
                name,
                datatype,
                shape,
                dims_count,
                byte_size,
                buffer_count,
            },
        )
    }

    fn TRITONBACKEND_InputBuffer(
        input: *mut abi::TRITONBACKEND_Input,
        index: u32,
        buffer: *mut *const c_void,
        buffer_byte_size: *mut u64,
        memory_type: *mut abi::TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let source = borrow(input)?;
        let chunk = chunk_at(source, index, memory_type)?;
        buffer_of(chunk, buffer, buffer_byte_size, memory_type, memory_type_id)
    }

    fn TRITONBACKEND_InputBufferForHostPolicy(
        input: *mut abi::TRITONBACKEND_Input,
        host_policy_name: *const c_char,
        index: u32,
        buffer: *mut *const c_void,
        buffer_byte_size: *mut u64,
        memory_type: *mut abi::TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let source = borrow(input)?;
        let chunk = match policy_chunks(source, host_policy_name)? {
            Some(chunks) => usize::try_from(index).ok().and_then(|index| chunks.get(index)),
            None => chunk_at(source, index, memory_type)?,
        };
        buffer_of(chunk, buffer, buffer_byte_size, memory_type, memory_type_id)
    }

    fn TRITONBACKEND_InputBufferAttributes(
        input: *mut abi::TRITONBACKEND_Input,
        index: u32,
        buffer: *mut *const c_void,
        buffer_attributes: *mut *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        let source = borrow(input)?;
        let chunk = usize::try_from(index).ok().and_then(|index| {
            Some((
                source.input().chunks.get(index)?.as_ptr(),
                as_handle(source.attributes(index)?),
            ))
        });
        let (address, attributes) = chunk.unwrap_or((std::ptr::null(), std::ptr::null_mut()));
        write(buffer, address.cast())?;
        write(buffer_attributes, attributes)
    }
}
