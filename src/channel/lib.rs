//! The only lock-free code: how threads hand things over.
//!
//! `claim` decides who owns a request (executor, canceller or timer); `inbox` is the bounded queue into a model's cores, `bell` wakes
//! an idle core; `mailbox` is the bounded queue into a shard, `door` wakes the shard; `baton` lets one core at a time drive a scheduler.
//! Everything is tested under loom (`RUSTFLAGS="--cfg loom" cargo test -p conch-channel --release`).

mod claim;

pub use claim::{Claim, Fate, Owned};
