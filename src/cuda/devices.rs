//! GPUs: what they are, and their primary contexts.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys;

use crate::CudaError;
use crate::error::check;

/// The generation of a GPU, such as 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeCapability {
    pub major: i32,
    pub minor: i32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// What a GPU is; read once, never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Its number among the visible ones: Triton's device id.
    pub ordinal: i32,
    pub name: String,
    /// As NVML and nvidia-smi write it: `GPU-` and five groups of hexadecimal digits.
    pub uuid: String,
    pub capability: ComputeCapability,
    pub memory_bytes: u64,
    /// As in sysfs, lower case: `0000:1b:00.0`.
    pub pci_address: String,
    /// Whether memory can be mapped piece by piece into reserved addresses.
    pub maps_memory: bool,
}

impl DeviceProperties {
    pub(crate) fn read(ordinal: c_int) -> Result<DeviceProperties, CudaError> {
        let device = handle(ordinal)?;
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the driver is initialised and gave the handle; the result is writable.
        check("cuDeviceGetUuid_v2", unsafe {
            sys::cuDeviceGetUuid_v2(&raw mut uuid, device)
        })?;
        let mut memory_bytes = 0;
        // SAFETY: as above.
        check("cuDeviceTotalMem_v2", unsafe {
            sys::cuDeviceTotalMem_v2(&raw mut memory_bytes, device)
        })?;
        let name = text("cuDeviceGetName", |buffer, length| {
            // SAFETY: as above; the buffer has `length` bytes.
            unsafe { sys::cuDeviceGetName(buffer, length, device) }
        })?;
        let pci_address = text("cuDeviceGetPCIBusId", |buffer, length| {
            // SAFETY: as above.
            unsafe { sys::cuDeviceGetPCIBusId(buffer, length, device) }
        })?;
        use sys::CUdevice_attribute as Attribute;
        Ok(DeviceProperties {
            ordinal,
            name,
            uuid: uuid_text(uuid.bytes.map(|byte| byte as u8)),
            capability: ComputeCapability {
                major: attribute(
                    device,
                    Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                )?,
                minor: attribute(
                    device,
                    Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                )?,
            },
            memory_bytes: memory_bytes as u64,
            pci_address: pci_address.to_ascii_lowercase(),
            maps_memory: attribute(
                device,
                Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            )? != 0,
        })
    }
}

fn handle(ordinal: c_int) -> Result<sys::CUdevice, CudaError> {
    let mut device = 0;
    // SAFETY: the driver is initialised; the result is writable.
    check("cuDeviceGet", unsafe {
        sys::cuDeviceGet(&raw mut device, ordinal)
    })?;
    Ok(device)
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the driver is initialised and gave the handle; the result is writable.
    check("cuDeviceGetAttribute", unsafe {
        sys::cuDeviceGetAttribute(&raw mut value, which, device)
    })?;
    Ok(value)
}

fn text(
    call: &'static str,
    ask: impl FnOnce(*mut c_char, c_int) -> sys::CUresult,
) -> Result<String, CudaError> {
    let mut buffer = [0_u8; 256];
    check(call, ask(buffer.as_mut_ptr().cast(), buffer.len() as c_int))?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    );
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

/// A GPU with its primary context, which backends share. Usable from every thread; memory, streams
/// and events hold it.
pub struct Device {
    properties: DeviceProperties,
    handle: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver allows every call of this crate from any thread; the context is named by a
// handle that is never dereferenced here.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The device's context is current on this thread while the guard lives. Then the thread has again
/// the one that it had before: it may be a backend's, which chose its device once.
#[must_use = "the device is current only while the guard lives"]
pub struct CurrentDevice<'device> {
    /// None where it was the same.
    before: Option<sys::CUcontext>,
    /// Bound to its thread.
    _device: PhantomData<(&'device Device, *const ())>,
}

impl Drop for CurrentDevice<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the context was this thread's; if it is gone, the driver refuses.
            let _ = unsafe { sys::cuCtxSetCurrent(before) };
        }
    }
}

impl Device {
    pub(crate) fn open(properties: DeviceProperties) -> Result<Arc<Device>, CudaError> {
        let handle = handle(properties.ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver gave the handle; the result is writable.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&raw mut context, handle)
        })?;
        Ok(Arc::new(Device {
            properties,
            handle,
            context,
        }))
    }

    pub fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    pub fn ordinal(&self) -> i32 {
        self.properties.ordinal
    }

    /// Makes calls of this thread use this device while the guard lives.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn current(&self) -> Result<CurrentDevice<'_>, CudaError> {
        let mut before = std::ptr::null_mut();
        // SAFETY: the result is writable.
        check("cuCtxGetCurrent", unsafe {
            sys::cuCtxGetCurrent(&raw mut before)
        })?;
        let is_other = before != self.context;
        if is_other {
            // SAFETY: the context is retained while `self` lives.
            check("cuCtxSetCurrent", unsafe {
                sys::cuCtxSetCurrent(self.context)
            })?;
        }
        Ok(CurrentDevice {
            before: is_other.then_some(before),
            _device: PhantomData,
        })
    }

    /// Free and total bytes of its memory, over all processes.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn memory_info(&self) -> Result<(u64, u64), CudaError> {
        let _current = self.current()?;
        let (mut free_bytes, mut total_bytes) = (0, 0);
        // SAFETY: the results are writable.
        check("cuMemGetInfo_v2", unsafe {
            sys::cuMemGetInfo_v2(&raw mut free_bytes, &raw mut total_bytes)
        })?;
        Ok((free_bytes as u64, total_bytes as u64))
    }

    /// Lets this device read and write the memory of `peer` directly. Returns false where the two
    /// cannot; copies between them then pass through the host.
    ///
    /// # Errors
    /// What the driver refuses beyond that.
    pub fn enable_peer_access(&self, peer: &Device) -> Result<bool, CudaError> {
        let mut can_access = 0;
        // SAFETY: both handles are the driver's; the result is writable.
        check("cuDeviceCanAccessPeer", unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut can_access, self.handle, peer.handle)
        })?;
        if can_access == 0 {
            return Ok(false);
        }
        let _current = self.current()?;
        // SAFETY: both contexts are retained; no flags are defined.
        let enabled = check("cuCtxEnablePeerAccess", unsafe {
            sys::cuCtxEnablePeerAccess(peer.context, 0)
        });
        match enabled {
            Err(error) if !error.is_already_enabled() => Err(error),
            _ => Ok(true),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`; nothing that holds it is left.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.properties.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_by_nvidia_smi() {
        let bytes = std::array::from_fn(|index| 0x10 * (index as u8 % 16));
        assert_eq!(uuid_text(bytes), "GPU-00102030-4050-6070-8090-a0b0c0d0e0f0");
    }
}
