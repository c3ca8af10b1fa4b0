//! The driver's library, and what it needs before its first use.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys;

use crate::devices::Device;
use crate::error::check;
use crate::{CudaError, DeviceProperties};

/// A driver that is loaded and initialised. Copies cost nothing; the library stays loaded.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: i32,
    device_count: c_int,
}

/// Why this host has no GPU to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverAbsent {
    /// There is no `libcuda.so.1`.
    NoLibrary,
    /// The library lacks a function that this server calls.
    TooOld(&'static str),
    /// The driver refuses to start, for instance without a device.
    Refused(CudaError),
}

impl fmt::Display for DriverAbsent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverAbsent::NoLibrary => formatter.write_str("libcuda.so.1 is not installed"),
            DriverAbsent::TooOld(function) => write!(
                formatter,
                "the driver is too old: it has no function {function}"
            ),
            DriverAbsent::Refused(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for DriverAbsent {}

impl Driver {
    /// Loads and initialises the driver's library; blocks while it does, for up to seconds on a
    /// host whose driver sleeps. `CUDA_VISIBLE_DEVICES` selects and orders devices.
    ///
    /// # Errors
    /// [`DriverAbsent`] where there is none to use.
    pub fn load() -> Result<Driver, DriverAbsent> {
        // SAFETY: loading runs the library's initialisers, as every user of CUDA does.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverAbsent::NoLibrary);
        }
        if let Some(name) = first_missing(&FUNCTIONS) {
            return Err(DriverAbsent::TooOld(name));
        }
        Driver::start().map_err(DriverAbsent::Refused)
    }

    fn start() -> Result<Driver, CudaError> {
        let (mut version, mut device_count) = (0, 0);
        // SAFETY: no flags are defined.
        check("cuInit", unsafe { sys::cuInit(0) })?;
        // SAFETY: the driver is initialised; the result is writable.
        check("cuDriverGetVersion", unsafe {
            sys::cuDriverGetVersion(&raw mut version)
        })?;
        // SAFETY: as above.
        check("cuDeviceGetCount", unsafe {
            sys::cuDeviceGetCount(&raw mut device_count)
        })?;
        Ok(Driver {
            version,
            device_count,
        })
    }

    /// The version of CUDA that the driver supports, such as (12, 8).
    pub fn version(self) -> (i32, i32) {
        (self.version / 1000, self.version % 1000 / 10)
    }

    /// The properties of every visible device, by ordinal. Makes no context.
    ///
    /// # Errors
    /// What the driver refuses for one of them.
    pub fn devices(self) -> Result<Vec<DeviceProperties>, CudaError> {
        (0..self.device_count).map(DeviceProperties::read).collect()
    }

    /// Makes the device's primary context; blocks for some 100 ms at its first time.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn open(self, properties: DeviceProperties) -> Result<Arc<Device>, CudaError> {
        Device::open(properties)
    }
}

/// Every function of the driver that this crate calls, but for those of kernels and graphs.
const FUNCTIONS: [&str; 50] = [
    "cuCtxEnablePeerAccess",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuPointerGetAttribute",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// The first of these functions that the driver's library lacks: its call would panic. To be asked
/// only where the library was found. Kernels and graphs look up their own when they are first used;
/// see [`KernelError`](crate::KernelError) and [`CaptureError`](crate::CaptureError).
pub(crate) fn first_missing(names: &[&'static str]) -> Option<&'static str> {
    // SAFETY: loading runs the library's initialisers, as every user of CUDA does; it was found
    // before.
    let library = unsafe { sys::culib() };
    names.iter().copied().find(|name| {
        // SAFETY: the symbol is only looked up, not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        found.is_err()
    })
}
