//! A shard: one thread, at home on a CPU, with one io_uring executor and the connections that the
//! acceptors dealt to it.
//!
//! The only module that knows the executor, by way of `runtime`. Rules: every task is behind
//! `catch_unwind` (a panic would end the executor), every task's handle is kept (futures pending at
//! the end are never dropped otherwise), and no borrow of shard state is held across a spawn, which
//! may poll the new task at once.

mod acquire;
mod admission;
mod brief_wait;
mod connection_guard;
mod connections;
mod drain;
mod ensure_loaded;
pub(crate) mod frontend_metrics;
mod in_flight;
mod inference;
pub(crate) mod link;
mod long_turns;
pub(crate) mod offload;
mod owed_executions;
mod owed_wakes;
mod response;
mod runtime;
mod shares;
mod slab;
mod spares;
mod stage;
mod state;
mod stream;
mod tasks;
mod thread;
mod yield_policy;

pub(crate) use acquire::{AcquireError, AcquireFuture, AcquireOutcome, AcquireTarget};
pub(crate) use admission::WaitingShards;
pub(crate) use connection_guard::ConnectionGuard;
pub(crate) use connections::{CLOSE_GRACE, WaitReason};
pub(crate) use ensure_loaded::{EnsuredModel, HeldPermit};
pub(crate) use in_flight::ResponseQueue;
pub use inference::SubmitOptions;
pub(crate) use response::{ResponseFuture, StreamRequest};
pub use runtime::LOCKED_BYTES_MIN;
pub(crate) use runtime::{Timer, yield_now};
pub(crate) use shares::ConnectionShares;
pub(crate) use slab::Slab;
pub(crate) use spares::SpareBuffers;
pub(crate) use stage::ShardStage;
pub(crate) use state::{Shard, ShardContext};
pub(crate) use stream::ShardStream;
pub(crate) use thread::ShardThread;
