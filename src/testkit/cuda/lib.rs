//! A test double of NVIDIA's driver library `libcuda.so.1`, for machines without a GPU.
//!
//! The environment variable `CONCH_CUDA_DOUBLE` says which devices there are: see [`config`].
//! Device memory is memory of the host that the CPU cannot touch at its device address; only
//! copies and kernels reach it, and threads carry them out as streams do. Tests order faults and
//! read counts through the functions in [`api::control`], or through the environment: see
//! [`faults`].

mod api;
mod backing;
mod call;
mod code;
mod config;
mod copy;
mod driver;
mod faults;
mod graph;
mod health;
mod host;
mod ipc;
mod kernel;
mod load;
mod modules;
mod space;
mod stream;
mod tally;
mod vmm;
mod window;

pub use api::*;
pub use load::LoadedDouble;

#[cfg(test)]
mod tests;
