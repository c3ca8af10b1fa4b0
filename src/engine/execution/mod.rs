//! The execution of batches: queues, cores and their threads, instances, and their places on the
//! machine.

pub mod active_sequences;
pub mod backend;
pub mod batch_policy;
pub mod cores;
pub mod host_policy;
pub mod progress;
pub mod queue;
pub mod rate_limiter;
pub mod refusal;
pub mod revision;
pub mod sequence_answers;
pub mod submit;
pub mod synthetic;
pub mod timer_thread;
pub mod topology;
pub mod warm_up;
