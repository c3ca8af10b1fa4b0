//! Kernels of a backend's own: PTX text that the driver compiles, and constants that they read.

use std::ffi::CStr;

/// One parameter of a kernel: addresses are those of a [`DeviceRange`](super::DeviceRange), of
/// [`DeviceConstants`], or 0.
pub use conch_cuda::{Argument as KernelArgument, DeviceAddress};
use conch_cuda::{CudaError, Function, Grid, KernelError, Module, Stream};

use super::allocator::MemoryAllocation;
use super::memory::{MemorySource, MemoryTarget};
use super::stream::DeviceStream;
use crate::Error;

/// Threads of a block: a multiple of what a device runs together, and few enough for every device.
const BLOCK_THREADS: u32 = 256;

/// A compiled kernel of one device, for all streams of it.
#[derive(Clone, Debug)]
pub struct DeviceKernel {
    function: Function,
}

impl DeviceKernel {
    /// Enqueues it with `rows` rows of threads, in each one for each of `count` elements, and up to
    /// 255 more; at least one.
    ///
    /// # Safety
    /// As for `Stream::launch` of the crate `cuda`.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        count: u32,
        rows: u32,
        arguments: &[KernelArgument<'_>],
    ) -> Result<(), CudaError> {
        let grid = Grid {
            blocks: count.div_ceil(BLOCK_THREADS).max(1),
            rows: rows.max(1),
            threads_per_block: BLOCK_THREADS,
        };
        // SAFETY: by this function's contract.
        unsafe { stream.launch(&self.function, grid, arguments) }
    }
}

/// Bytes in the memory of a device that kernels read, for as long as this lives.
pub struct DeviceConstants {
    block: MemoryAllocation,
}

impl DeviceConstants {
    pub fn address(&self) -> u64 {
        self.block.address()
    }
}

impl DeviceStream {
    /// Has the driver compile PTX text, and finds the kernel `name` in it. Blocks for some
    /// milliseconds.
    ///
    /// # Errors
    /// `Unavailable` if the driver is too old for kernels; `Internal` if it refuses the text, with
    /// the log of its compiler.
    pub fn compile(&self, ptx: &CStr, name: &CStr) -> Result<DeviceKernel, Error> {
        let refused = |error: &KernelError| {
            let message = format!("GPU {}: {error}", self.stream.device().ordinal());
            match error {
                KernelError::TooOld(_) => Error::unavailable(message),
                _ => Error::internal(message),
            }
        };
        let module = Module::compile(self.stream.device(), ptx).map_err(|error| refused(&error))?;
        let function = module.function(name);
        Ok(DeviceKernel {
            function: function.map_err(|error| refused(&error.into()))?,
        })
    }

    /// Puts bytes into memory of the device. Blocks until they are there.
    ///
    /// # Errors
    /// `Unavailable` without room; `Internal` for what the driver refuses.
    pub fn constants(&mut self, bytes: &[u8]) -> Result<DeviceConstants, Error> {
        let place = self.place();
        let block = MemoryAllocation::new(&self.allocator, place, bytes.len())?;
        let base = std::ptr::with_exposed_provenance_mut(block.address() as usize);
        // SAFETY: the bytes are borrowed beyond the copy, the block is as long and nobody else's.
        let (source, mut target) = unsafe {
            (
                MemorySource::new(
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    conch_memory::MemoryPlace::CPU,
                ),
                MemoryTarget::new(base, bytes.len(), place, c"constants")?,
            )
        };
        let mut copies = self.copies();
        copies.add(0, source, &mut target)?;
        match copies.run().pop() {
            Some((_, error)) => Err(error),
            None => Ok(DeviceConstants { block }),
        }
    }
}
