//! Memory of a device.

use std::sync::Arc;

use cudarc::driver::sys;

use crate::error::check;
use crate::{CudaError, Device, DeviceAddress, IpcHandle};

/// Bytes of a device's memory, owned. Freed when dropped, which waits for the work of the device
/// that uses them.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<Device>,
    base: DeviceAddress,
    len: u64,
}

impl DeviceMemory {
    /// Allocates at least one byte; the content is undefined. May block while the device works.
    ///
    /// # Errors
    /// What the driver refuses; [`CudaError::is_out_of_memory`] where there is no room.
    pub fn allocate(device: &Arc<Device>, len: u64) -> Result<DeviceMemory, CudaError> {
        let _current = device.current()?;
        let mut base = 0;
        let size = usize::try_from(len.max(1)).unwrap_or(usize::MAX);
        // SAFETY: the result is writable.
        check("cuMemAlloc_v2", unsafe {
            sys::cuMemAlloc_v2(&raw mut base, size)
        })?;
        Ok(DeviceMemory {
            device: Arc::clone(device),
            base: DeviceAddress(base),
            len,
        })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn base(&self) -> DeviceAddress {
        self.base
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What another process maps this allocation by.
    ///
    /// # Errors
    /// What the driver refuses; some containers allow no IPC.
    pub fn ipc_handle(&self) -> Result<IpcHandle, CudaError> {
        let _current = self.device.current()?;
        IpcHandle::of(self.base)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: allocated in `allocate`, freed once.
            let _ = unsafe { sys::cuMemFree_v2(self.base.0) };
        }
    }
}
