//! The execution of batches: queues, the cores that drive them, and their instances.

pub mod active_sequences;
pub mod batch_policy;
pub mod cores;
pub(crate) mod instance_usage;
pub mod progress;
pub mod queue;
pub mod rate_limiter;
pub mod revision;
pub(crate) mod seat;
pub mod sequence_answers;
pub mod streams;
pub mod submit;
pub(crate) mod timelines;
pub mod warm_up;
