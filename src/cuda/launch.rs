//! Launches of kernels.

use std::ffi::c_void;

use cudarc::driver::sys;

use crate::error::check;
use crate::{CudaError, DeviceAddress, Function, Stream};

/// How many threads run a kernel: rows of blocks of threads. A block's place in its row is
/// `%ctaid.x`, its row `%ctaid.y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// In each row.
    pub blocks: u32,
    /// At most 65,535.
    pub rows: u32,
    /// At most 1024.
    pub threads_per_block: u32,
}

/// One parameter of a kernel, of the width that its `.param` has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument<'a> {
    Address(DeviceAddress),
    U32(u32),
    U64(u64),
    F32(f32),
    /// An array, as long as its `.param` is.
    Bytes(&'a [u8]),
}

/// More than any kernel of this workspace has.
pub const ARGUMENTS_MAX: usize = 16;

impl Stream {
    /// Enqueues a kernel. The arguments are copied before this returns; nothing else is waited for.
    ///
    /// # Safety
    /// `arguments` are the function's parameters, in number, order and width. With them, and
    /// `grid`, the kernel ends, and reads and writes only memory for which what [`Stream::copy`]
    /// asks of its ranges holds.
    ///
    /// # Errors
    /// What the driver refuses; nothing was enqueued then. An error of the kernel itself is told by
    /// later calls.
    ///
    /// # Panics
    /// If there are more than [`ARGUMENTS_MAX`] arguments, or the function is of another device.
    pub unsafe fn launch(
        &self,
        function: &Function,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<(), CudaError> {
        assert!(arguments.len() <= ARGUMENTS_MAX, "too many arguments");
        assert_eq!(
            function.module().device().ordinal(),
            self.device().ordinal(),
            "the function is of another device"
        );
        let mut words = [0_u64; ARGUMENTS_MAX];
        let mut addresses = [std::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        for ((word, address), argument) in words.iter_mut().zip(&mut addresses).zip(arguments) {
            // The driver reads as many bytes of the word as the parameter has: hosts of GPUs are
            // little-endian.
            *word = match *argument {
                Argument::Address(address) => address.0,
                Argument::U64(value) => value,
                Argument::U32(value) => u64::from(value),
                Argument::F32(value) => u64::from(value.to_bits()),
                Argument::Bytes(bytes) => {
                    *address = bytes.as_ptr().cast_mut().cast();
                    continue;
                }
            };
            *address = std::ptr::from_mut(word).cast();
        }
        let _current = self.device().current()?;
        // SAFETY: stream and function live, and `Module::compile` has looked the driver's function
        // up; each parameter has an address of a word, which has as many bytes as the widest
        // number, or of an array, which the driver only reads; the rest is promised by the caller.
        check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                function.handle(),
                grid.blocks,
                grid.rows,
                1,
                grid.threads_per_block,
                1,
                1,
                0,
                self.handle(),
                addresses.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}
