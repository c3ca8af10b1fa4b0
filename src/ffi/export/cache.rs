//! Functions that a response cache calls while it looks up or inserts.

use std::ffi::c_void;

use conch_abi as abi;
use conch_engine::Error;
use conch_memory::MemoryKind;

use super::export;
use crate::boundary::{borrow, write};
use crate::host::CacheBuffer;
use crate::objects::{BufferAttributes, kind_of};

/// The length of a plug-in's buffer.
///
/// # Errors
/// INVALID_ARG for memory that the CPU cannot read.
fn byte_size_of(attributes: &BufferAttributes) -> Result<usize, Error> {
    let attributes = attributes.load();
    if kind_of(attributes.memory_type)? == MemoryKind::Gpu {
        return Err(Error::invalid(
            "Only buffers in CPU memory are allowed in cache currently",
        ));
    }
    usize::try_from(attributes.byte_size)
        .map_err(|_| Error::invalid("buffer does not fit the address space"))
}

/// Upstream's word for any of the three.
fn any_null<A, B, C>(first: *const A, second: *const B, third: *const C) -> Result<(), Error> {
    if first.is_null() || second.is_null() || third.is_null() {
        return Err(Error::invalid("entry, base, or attrs was nullptr"));
    }
    Ok(())
}

export! {
    fn TRITONCACHE_CacheEntryBufferCount(
        entry: *mut abi::TRITONCACHE_CacheEntry,
        count: *mut usize,
    ) {
        write(count, borrow(entry)?.len())
    }

    fn TRITONCACHE_CacheEntryAddBuffer(
        entry: *mut abi::TRITONCACHE_CacheEntry,
        base: *mut c_void,
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        any_null(entry, base, buffer_attributes)?;
        let byte_size = byte_size_of(borrow(buffer_attributes)?)?;
        if byte_size == 0 {
            return Err(Error::invalid("Buffer byte size was zero"));
        }
        borrow(entry)?.add(CacheBuffer { base, byte_size });
        Ok(())
    }

    fn TRITONCACHE_CacheEntryGetBuffer(
        entry: *mut abi::TRITONCACHE_CacheEntry,
        index: usize,
        base: *mut *mut c_void,
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        any_null(entry, base, buffer_attributes)?;
        let buffer = borrow(entry)?.get(index)?;
        write(base, buffer.base)?;
        borrow(buffer_attributes)?.store(buffer.byte_size as u64, MemoryKind::Cpu as u32, 0);
        Ok(())
    }

    fn TRITONCACHE_CacheEntrySetBuffer(
        entry: *mut abi::TRITONCACHE_CacheEntry,
        index: usize,
        new_base: *mut c_void,
        buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes,
    ) {
        let byte_size = match buffer_attributes.is_null() {
            true => None,
            false => Some(byte_size_of(borrow(buffer_attributes)?)?),
        };
        borrow(entry)?.set(index, new_base, byte_size)
    }

    fn TRITONCACHE_Copy(
        allocator: *mut abi::TRITONCACHE_Allocator,
        entry: *mut abi::TRITONCACHE_CacheEntry,
    ) {
        if allocator.is_null() || entry.is_null() {
            return Err(Error::invalid("allocator or entry was nullptr"));
        }
        borrow(allocator)?.copy(borrow(entry)?)
    }
}
