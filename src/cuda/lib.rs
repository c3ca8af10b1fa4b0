//! The one door to NVIDIA's driver: devices, their memory, streams, events and IPC.
//!
//! The driver's library (`libcuda.so.1`) is looked for at run time. A host without it, or without a
//! device, is a value ([`DriverAbsent`]); no call of this crate panics for it. Nothing here knows
//! models or requests, and nothing here starts a thread; the driver starts its own when the first
//! context is made ([`Device::open`]).
//!
//! Every call that needs a context makes the device's primary context current on the calling thread
//! for its duration; backends that use the runtime API share that context.

mod address;
mod devices;
mod driver;
mod error;
mod event;
mod graph;
mod growable;
mod ipc;
mod launch;
mod memory;
mod module;
mod monitor;
mod pinned;
mod pool;
mod pool_memory;
mod retired;
mod stream;
#[cfg(test)]
mod tests;
mod transfer;

pub use address::DeviceAddress;
pub use devices::{ComputeCapability, CurrentDevice, Device, DeviceProperties};
pub use driver::{Driver, DriverAbsent};
pub use error::CudaError;
pub use event::Event;
pub use graph::{CaptureError, CudaGraph};
pub use growable::{GrowableAddresses, GrowableMemory};
pub use ipc::{IPC_HANDLE_BYTES, IpcHandle, IpcMapping};
pub use launch::{ARGUMENTS_MAX, Argument, Grid};
pub use memory::DeviceMemory;
pub use module::{Function, KernelError, Module};
pub use monitor::{GpuMonitor, GpuReading, MonitorAbsent};
pub use pinned::PinnedMemory;
pub use pool::{DevicePool, MemoryPool, PinnedPool, PoolBlock, PoolMemory, PoolUsage};
pub use retired::{Reclaimer, RetiredQueue};
pub use stream::Stream;
pub use transfer::TransferError;
