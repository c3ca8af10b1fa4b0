//! Regions: memory that clients share with the server, registered by name, read and written in
//! place.
//!
//! ```text
//! register ──► named ──────────────── unregister ──► gone: no use begins, it is unmapped
//!                │ ▲                       │             ▲
//!          enter ▼ │ leave                 ▼             │ the last one leaves
//!              in use ── unregister ──► leaving ─────────┘
//! ```
//!
//! A region that is leaving can still be found, and its name is taken, as upstream has it: with
//! requests that never cease it never goes.
//!
//! Control calls (register, unregister, status) take a lock and may block; they run beside the
//! shards. Requests find regions in a snapshot of the names, without a lock, and count themselves
//! in and out. Unmapping may take long, so who leaves last hands the region to a thread for that.

pub mod region;
pub mod regions;
#[cfg(test)]
mod tests;
pub mod usage;
pub mod window;

pub use region::{RegionSource, RegionStatus, cuda_handle};
pub use regions::Regions;
pub use usage::RequestRegions;
pub use window::{RegionKind, RegionWindow};
