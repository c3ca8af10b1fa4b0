//! Host memory that devices reach by themselves.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys;

use crate::error::check;
use crate::{CudaError, Device};

/// Page-locked host memory, mapped for all devices. Copies between it and a device are
/// asynchronous. Freed when dropped.
#[derive(Debug)]
pub struct PinnedMemory {
    device: Arc<Device>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned and has no tie to a thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared references give out addresses alone.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates on the NUMA node that the calling thread takes memory from; blocks while pages are
    /// locked, about 0.3 s per GiB. The content is zero.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn allocate(device: &Arc<Device>, len: usize) -> Result<PinnedMemory, CudaError> {
        const PORTABLE: u32 = 1;
        let _current = device.current()?;
        let mut base = std::ptr::null_mut();
        // SAFETY: the result is writable.
        check("cuMemHostAlloc", unsafe {
            sys::cuMemHostAlloc(&raw mut base, len.max(1), PORTABLE)
        })?;
        let base = NonNull::new(base.cast()).unwrap_or(NonNull::dangling());
        Ok(PinnedMemory {
            device: Arc::clone(device),
            base,
            len,
        })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: allocated in `allocate`, freed once.
            let _ = unsafe { sys::cuMemFreeHost(self.base.as_ptr().cast()) };
        }
    }
}
