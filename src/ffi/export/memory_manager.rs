//! Memory for backends.

use std::ffi::c_void;

use conch_abi as abi;
use conch_engine::Error;
use conch_engine::gpus::GpuHost;
use conch_memory::{ALIGNMENT_BYTES, MemoryKind};

use super::export;
use crate::boundary::{HandleTag, borrow, handles, write};
use crate::objects::kind_of;

/// The one memory manager. Host memory comes from the C allocator, whose blocks know their size
/// when they are freed; pinned memory from its pool; a device's from its pool, then from the
/// driver.
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
        let memory = match kind_of(memory_type)? {
            MemoryKind::Gpu => device_memory(gpus(GPU_UNSUPPORTED)?, memory_type_id, byte_size)?,
            MemoryKind::CpuPinned => pinned_memory(gpus(PINNED_UNSUPPORTED)?, byte_size)?,
            MemoryKind::Cpu => host_memory(byte_size)?,
        };
        write(buffer, memory).inspect_err(|_| {
            let _ = free(memory, memory_type, memory_type_id);
        })
    }

    fn TRITONBACKEND_MemoryManagerFree(
        manager: *mut abi::TRITONBACKEND_MemoryManager,
        buffer: *mut c_void,
        memory_type: abi::TRITONSERVER_MemoryType,
        memory_type_id: i64,
    ) {
        borrow(manager)?;
        free(buffer, memory_type, memory_type_id)
    }
}

const GPU_UNSUPPORTED: &str = "GPU memory allocation not supported";
const PINNED_UNSUPPORTED: &str = "Pinned memory allocation not supported";

/// # Errors
/// UNSUPPORTED, in the words of upstream's build without GPUs, on a host without.
fn gpus(otherwise: &'static str) -> Result<&'static GpuHost, Error> {
    let host = GpuHost::current().filter(|host| !host.gpus().is_empty());
    Ok(host.ok_or_else(|| Error::unsupported(otherwise))?)
}

fn device_memory(gpus: &GpuHost, device_id: i64, byte_size: u64) -> Result<*mut c_void, Error> {
    let memory = gpus.memory(device_id)?;
    let address = memory.allocate(byte_size).map_err(|error| {
        Error::unavailable(format!(
            "failed to allocate {byte_size} bytes on GPU {device_id}: {error}"
        ))
    })?;
    Ok(address as usize as *mut c_void)
}

fn pinned_memory(gpus: &GpuHost, byte_size: u64) -> Result<*mut c_void, Error> {
    let address = gpus.allocate_pinned(byte_size)?.ok_or_else(|| {
        Error::unavailable(format!(
            "failed to allocate {byte_size} bytes of pinned memory: the pool has no room \
             (--pinned-memory-pool-byte-size)"
        ))
    })?;
    Ok(address as usize as *mut c_void)
}

fn host_memory(byte_size: u64) -> Result<*mut c_void, Error> {
    let refused = || Error::unavailable("CPU memory allocation failed");
    let mut memory = std::ptr::null_mut();
    let size = usize::try_from(byte_size).map_err(|_| refused())?;
    // At least one byte, so that success never looks like null.
    // SAFETY: the target is writable, the alignment a power of two.
    if unsafe { libc::posix_memalign(&raw mut memory, ALIGNMENT_BYTES, size.max(1)) } != 0 {
        return Err(refused());
    }
    Ok(memory)
}

/// # Errors
/// As for an allocation; INVALID_ARG for what was not allocated here.
///
/// # Safety
/// Host memory was allocated by [`host_memory`], and nobody uses it any more.
unsafe fn free(buffer: *mut c_void, memory_type: u32, memory_type_id: i64) -> Result<(), Error> {
    let address = buffer.addr() as u64;
    let was_ours = match kind_of(memory_type)? {
        MemoryKind::Gpu => gpus(GPU_UNSUPPORTED)?.memory(memory_type_id)?.free(address),
        MemoryKind::CpuPinned => gpus(PINNED_UNSUPPORTED)?.free_pinned(address),
        MemoryKind::Cpu => {
            // SAFETY: by this function's contract.
            unsafe { libc::free(buffer) };
            true
        }
    };
    match was_ours {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "no memory of this type was allocated at {buffer:p}"
        ))),
    }
}
