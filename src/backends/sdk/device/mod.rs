//! Instances on GPUs: a stream of an instance's own, and the copies of its batches.
//!
//! A backend opens a [`DeviceStream`] for an instance of KIND_GPU, asks for inputs and outputs in
//! the memory of its [`place`](DeviceStream::place), and takes whatever memory the server gives:
//! [`Copies`] reach pageable and pinned host memory and the memory of every GPU. Called by the
//! thread that executes the instance. The driver is neither looked for nor called before the first
//! stream is opened.

mod allocator;
mod block;
mod copies;
mod gather;
mod kernel;
mod memory;
mod plan;
mod queue;
mod room;
mod shared;
mod slot;
mod staging;
mod stream;
mod stream_batches;
#[cfg(test)]
mod tests;
mod timeline;
mod work;

pub(crate) use allocator::MemoryManager;
pub use block::{DeviceBlock, DeviceBlocks};
pub use copies::Copies;
pub use gather::{DEVICE_ALIGNMENT, DeviceGather};
pub use kernel::{DeviceConstants, DeviceKernel, KernelArgument};
pub use memory::{MemorySource, MemoryTarget};
pub(crate) use memory::{place_of, raw_kind};
pub use queue::{DeviceQueue, EngineBlock, EngineGraph, EngineStream, EngineWork};
pub use shared::{DeviceAccess, ExportedMemory, ImportedMemory};
pub use slot::DeviceSlot;
pub use stream::{DeviceStream, StreamHandle};
pub use stream_batches::StreamBatches;
pub use work::{DeviceRange, DeviceWork};
