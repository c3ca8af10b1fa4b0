//! Kernels: PTX text, and an interpreter that runs it on a stream's thread.
//!
//! It knows the part of PTX that this repository's kernels use: registers, parameters, global
//! memory, arithmetic of integers and of FP32 and FP16, conversions, comparisons and branches. What
//! it does not know it refuses when the module is loaded, as the driver refuses a wrong text, with
//! the line in the log. It has no shared memory and no barriers, so that the threads of a kernel
//! run one after the other.

mod execute;
mod instruction;
mod launch;
mod memory;
mod number;
mod operations;
mod parse;
mod program;
mod statement;
mod symbols;

pub use execute::Launch;
pub use launch::launch;
pub use parse::parse;
pub use program::{Kernel, Module};

#[cfg(test)]
mod tests;
