//! Memory and messages between the Python backend and its stub processes.
//!
//! Two [`SharedSegment`]s per stub, each a memory file without a name. One side allocates in each:
//! the backend in that of requests, the stub in that of responses; both sides map both. A segment
//! begins with a control area ([`CONTROL_BYTES`]):
//!
//! | offset | what |
//! |---|---|
//! | 0 | a [`MessageSlot`]: the command, or the reply to it, that its side sent last |
//! | 4096 | an [`OffsetRing`]: in the segment of responses, blocks that the stub posted |
//!
//! The rest are [`blocks`](BlockAllocator): a [`BlockHeader`], a message (JSON, or as [`wire`]
//! says), and the bytes of its tensors, each at a multiple of [`ALIGNMENT_BYTES`]. Whoever was
//! given a block says through its header that it is done with it.
//!
//! The other side is not trusted: what it writes is read once and checked against the segment's
//! bounds; a wrong value costs the messages of this pair of processes and nothing else. Memory
//! files are sealed, so that no side can take pages from under the other.

mod bell;
#[cfg(not(loom))]
mod blocks;
mod device_place;
mod header;
mod ring;
#[cfg(not(loom))]
mod segment;
mod slot;
pub mod wire;

#[cfg(not(loom))]
pub use blocks::{BlockAllocator, BlockUsage, PageBound};
pub use device_place::{DevicePlace, IPC_HANDLE_BYTES};
pub use header::{BlockHeader, BlockState};
pub use ring::{OffsetRing, RingFault};
#[cfg(not(loom))]
pub use segment::{SegmentError, SharedSegment};
pub use slot::{Message, MessageSlot};

/// Bytes in front of the blocks of a segment.
pub const CONTROL_BYTES: u64 = 64 << 10;

/// Blocks, and tensors within them, begin at multiples of this: a cache line.
pub const ALIGNMENT_BYTES: u64 = 64;

/// A message of a stub's is at most that long; its tensors do not count. Its values take up to some
/// 32 times as much memory while it is read.
pub const MESSAGE_BYTES_MAX: u64 = 16 << 20;

/// Where the control area has its parts.
#[cfg(not(loom))]
const SLOT_AT: u64 = 0;
#[cfg(not(loom))]
const RING_AT: u64 = 4096;
