//! Buffers and where they live.
//!
//! [`Block`] is an owned, 64-byte-aligned piece of memory; [`ByteView`] a cheap shared window onto
//! a frozen block or onto foreign memory; [`Pool`] recycles blocks by size class; [`Budget`] is the
//! process-wide bound on bytes that requests may hold, with a share for each connection;
//! [`Reserve`] is an allocator for when the system has none; [`OutOfMemory`] is what everything
//! else says then; [`unused`] gives back what a thread has freed, and [`program_code`] what of
//! the executable a start has touched. [`SharedMapping`] maps memory of
//! other processes, and [`fault`] keeps what they do to it from ending this one. All are usable
//! from every thread; nothing here blocks or does I/O. Pinned memory and memory of GPUs come from
//! the crate `cuda`; a [`MemoryPlace`] says which a view lies in.
//!
//! System calls are rustix's, but for mappings and handlers of signals: its calls for mappings are
//! `unsafe` too, and handlers it leaves to libc.

mod aligned_memory;
mod arena;
mod block;
mod budget;
pub mod fault;
mod free_list;
#[cfg(feature = "mimalloc")]
mod mimalloc;
mod place;
mod pool;
mod pooled;
pub mod program_code;
mod ranges;
#[cfg(debug_assertions)]
pub mod refusals;
mod reserve;
mod runs;
mod scarcity;
mod share;
mod shared;
mod shared_block;
mod total;
pub mod unused;
mod view;

#[cfg(feature = "mimalloc")]
pub use self::mimalloc::MIMALLOC;
pub use aligned_memory::AlignedMemory;
pub use arena::{HUGE_ABOVE_BYTES, held_bytes};
pub use block::Block;
pub use budget::{Budget, Charge};
pub use place::{MemoryKind, MemoryPlace};
pub use pool::{Owner, PinnedSource, Pool};
pub use ranges::{FreeRanges, RANGE_ALIGNMENT_BYTES, class_bytes};
pub use reserve::Reserve;
pub use scarcity::{OutOfMemory, fallible, is_scarce, try_extend, try_push, try_reserve, try_text};
pub use shared::{AllowedOwners, MapError, SharedMapping};
pub use total::{BudgetExhausted, CLIENT_FACTOR, ClientCounters, ClientId, ConnectionUsage};
pub use view::ByteView;

/// Every block starts on such a boundary: a cache line, and the widest vector load (AVX-512) of
/// today's runtimes.
pub const ALIGNMENT_BYTES: usize = 64;
