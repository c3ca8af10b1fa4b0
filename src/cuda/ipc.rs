//! Device memory of other processes.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use cudarc::driver::sys;

use crate::address::DeviceAddress;
use crate::error::check;
use crate::{CudaError, Device};

/// Bytes of a handle on the wire.
pub const IPC_HANDLE_BYTES: usize = 64;

/// Names an allocation of device memory to other processes of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcHandle(pub [u8; IPC_HANDLE_BYTES]);

impl IpcHandle {
    /// Of the allocation that holds `address`. The caller's context is current.
    pub(crate) fn of(address: DeviceAddress) -> Result<IpcHandle, CudaError> {
        let mut handle = sys::CUipcMemHandle {
            reserved: [0; IPC_HANDLE_BYTES],
        };
        // SAFETY: the result is writable; the driver checks the address.
        check("cuIpcGetMemHandle", unsafe {
            sys::cuIpcGetMemHandle(&raw mut handle, address.0)
        })?;
        Ok(IpcHandle(handle.reserved.map(|byte| byte as u8)))
    }
}

/// An allocation of another process, mapped; unmapped when dropped. It stays valid while mapped,
/// whatever its owner does.
#[derive(Debug)]
pub struct IpcMapping {
    device: Arc<Device>,
    handle: IpcHandle,
    base: DeviceAddress,
    len: u64,
}

impl IpcMapping {
    /// Maps the allocation that `handle` names.
    ///
    /// # Errors
    /// What the driver refuses: a handle of nothing, of this process, or of another device.
    pub fn open(device: &Arc<Device>, handle: IpcHandle) -> Result<IpcMapping, CudaError> {
        const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
        let _current = device.current()?;
        let raw_handle = sys::CUipcMemHandle {
            reserved: handle.0.map(|byte| byte as c_char),
        };
        let mut base = 0;
        // SAFETY: the result is writable; the driver checks the handle.
        check("cuIpcOpenMemHandle_v2", unsafe {
            sys::cuIpcOpenMemHandle_v2(&raw mut base, raw_handle, LAZY_ENABLE_PEER_ACCESS)
        })?;
        let mut mapping = IpcMapping {
            device: Arc::clone(device),
            handle,
            base: DeviceAddress(base),
            len: 0,
        };
        let (mut start, mut len) = (0, 0);
        // SAFETY: the results are writable; `base` was mapped just now.
        check("cuMemGetAddressRange_v2", unsafe {
            sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut len, base)
        })?;
        mapping.len = (len as u64).saturating_sub(base.saturating_sub(start));
        Ok(mapping)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// By which it was opened; its owner's other processes may open it, too.
    pub fn handle(&self) -> IpcHandle {
        self.handle
    }

    pub fn base(&self) -> DeviceAddress {
        self.base
    }

    /// Bytes from the base to the end of the allocation.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for IpcMapping {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: mapped in `open`, unmapped once.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.base.0) };
        }
    }
}
