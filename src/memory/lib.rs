//! Buffers and where they live.
//!
//! [`Block`] is an owned, 64-byte-aligned piece of memory; [`View`] a cheap shared window onto a frozen block or onto foreign memory;
//! [`Pool`] recycles blocks by size class; [`Budget`] is the process-wide bound on bytes that requests may hold; [`Sparse`] is an
//! allocator that saves memory on buffers that are not used. [`Shared`] maps memory of other processes, and [`fault`] keeps what they do
//! to it from ending this one.
//! All are usable from every thread; nothing here blocks or does I/O. GPU memory enters through `cuda` in later work: until then a
//! [`Place`] of kind GPU can be described but not allocated.

mod block;
mod budget;
pub mod fault;
mod place;
mod pool;
mod shared;
mod sparse;
mod view;

pub use block::Block;
pub use budget::{Budget, Charge, Exhausted};
pub use place::{Kind, Place};
pub use pool::{Owner, Pool};
pub use shared::{MapError, Shared};
pub use sparse::Sparse;
pub use view::View;

/// Every block starts on such a boundary: a cache line, and the widest vector load (AVX-512) of today's runtimes.
pub const ALIGNMENT_BYTES: usize = 64;
