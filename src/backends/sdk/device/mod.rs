//! Instances on GPUs: a stream of an instance's own, and the copies of its batches.
//!
//! A backend opens a [`DeviceStream`] for an instance of KIND_GPU, asks for inputs and outputs in
//! the memory of its [`place`](DeviceStream::place), and takes whatever memory the server gives:
//! [`Copies`] reach pageable and pinned host memory and the memory of every GPU. Called by the
//! thread that executes the instance. The driver is neither looked for nor called before the first
//! stream is opened.

mod allocator;
mod batches;
mod block;
mod copies;
mod gather;
mod kernel;
mod memory;
mod pending;
mod plan;
mod refusal;
mod shared;
mod staging;
mod stream;
#[cfg(test)]
mod tests;
mod timeline;
mod workspace;

pub(crate) use allocator::MemoryManager;
pub use batches::{BatchStreams, DeviceBatches, DeviceRange, DeviceWork};
pub use block::{DeviceBlock, DeviceBlocks};
pub use conch_cuda::CudaGraph;
pub use copies::{Copies, CopyPlan};
pub use gather::{DEVICE_ALIGNMENT, DeviceGather};
pub use kernel::{DeviceAddress, DeviceConstants, DeviceKernel, KernelArgument};
pub use memory::{MemorySource, MemoryTarget};
pub(crate) use memory::{place_of, raw_kind};
pub use shared::{DeviceAccess, ExportedMemory, ImportedMemory};
pub use stream::{DeviceStream, StreamHandle};
