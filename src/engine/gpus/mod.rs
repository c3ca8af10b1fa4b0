//! The GPUs that models may use, and the memory that the server keeps for them.
//!
//! A process has one [`GpuHost`], as it has one driver: servers of one process and the backends
//! that they share see the same. The first server finds the devices; a device's context and pools
//! are made when its first user comes, so that a server whose models run on CPUs takes nothing of
//! any GPU.

mod growable;
mod health;
mod host;
mod memory;
mod options;
mod outputs;
mod pinned;
#[cfg(test)]
mod tests;

pub use conch_cuda::{IPC_HANDLE_BYTES, IpcHandle};
pub use growable::{GrowableBuffer, GrowableSource};
pub use host::{Gpu, GpuHost};
pub use memory::GpuMemory;
pub use options::GpuOptions;
pub use outputs::DeviceBlock;
