//! Schedulers as passive state machines: entries and the time go in, batches and the next deadline
//! come out.
//!
//! - [`Scheduler`]: how the batches of one model form ([`Fifo`], [`DynamicBatcher`],
//!   [`SequenceBatcher`]).
//! - [`rate_limit`]: which instance may execute next.
//! - [`ensemble_graph`]: which step of an ensemble may start, and what is answered.
//! - [`eviction`]: which model is unloaded to make room for another.
//!
//! Nothing here reads a clock or the environment, starts a thread or does I/O. The engine drives
//! these under its locks; tests and the simulator drive them on a virtual clock.

#![forbid(unsafe_code)]

mod delay;
mod dynamic;
pub mod ensemble_graph;
mod entry;
pub mod eviction;
#[cfg(test)]
mod fake;
mod fifo;
mod measure;
mod output;
pub mod rate_limit;
mod scheduler;
mod sequence_batcher;
#[doc(hidden)]
pub mod testing;

pub use delay::{BACKLOG_VARIABLE, REQUESTS_VARIABLE, SchedulerDelay};
pub use dynamic::{BatchDecision, BatchPolicy, DynamicBatcher, policy_of, rejection_ns};
pub use entry::{Entry, EntryKind, SchedulingParams, Signature};
pub use fifo::Fifo;
#[doc(hidden)]
pub use measure::Batcher;
pub use output::{Dismissal, SchedulerOutput};
pub use scheduler::Scheduler;
pub use sequence_batcher::{SequenceBatcher, SequenceContext, SequenceKey, SlotUsage};
