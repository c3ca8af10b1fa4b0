//! Memory for backends.

use std::ffi::c_void;

use conch_abi as abi;
use conch_engine::Error;
use conch_memory::{ALIGNMENT_BYTES, MemoryKind};

use super::export;
use crate::boundary::{HandleTag, borrow, handles, write};
use crate::objects::kind_of;

/// The one memory manager: host memory comes from the C allocator, whose blocks know their size
/// when they are freed.
#[repr(C)]
pub(crate) struct MemoryManager {
    tag: HandleTag<abi::TRITONBACKEND_MemoryManager>,
}

pub(crate) static MEMORY_MANAGER: MemoryManager = MemoryManager {
    tag: HandleTag::new(),
};

handles! {
    TRITONBACKEND_MemoryManager => MemoryManager, "memory manager", tagged;
}

export! {
    fn TRITONBACKEND_MemoryManagerAllocate(
        manager: *mut abi::TRITONBACKEND_MemoryManager,
        buffer: *mut *mut c_void,
        memory_type: abi::TRITONSERVER_MemoryType,
        memory_type_id: i64,
        byte_size: u64,
    ) {
        borrow(manager)?;
        let _ = memory_type_id;
        match kind_of(memory_type)? {
            MemoryKind::Gpu => {
                return Err(Error::unsupported("GPU memory allocation not supported"));
            }
            MemoryKind::CpuPinned => {
                return Err(Error::unsupported("Pinned memory allocation not supported"));
            }
            MemoryKind::Cpu => {}
        }
        let refused = || Error::unavailable("CPU memory allocation failed");
        let mut memory = std::ptr::null_mut();
        let size = usize::try_from(byte_size).map_err(|_| refused())?;
        // At least one byte, so that success never looks like null.
        if libc::posix_memalign(&raw mut memory, ALIGNMENT_BYTES, size.max(1)) != 0 {
            return Err(refused());
        }
        write(buffer, memory).inspect_err(|_| libc::free(memory))
    }

    fn TRITONBACKEND_MemoryManagerFree(
        manager: *mut abi::TRITONBACKEND_MemoryManager,
        buffer: *mut c_void,
        memory_type: abi::TRITONSERVER_MemoryType,
        memory_type_id: i64,
    ) {
        borrow(manager)?;
        let _ = memory_type_id;
        match kind_of(memory_type)? {
            MemoryKind::Gpu => Err(Error::unsupported("GPU memory allocation not supported")),
            MemoryKind::CpuPinned => {
                Err(Error::unsupported("Pinned memory allocation not supported"))
            }
            MemoryKind::Cpu => {
                libc::free(buffer);
                Ok(())
            }
        }
    }
}
