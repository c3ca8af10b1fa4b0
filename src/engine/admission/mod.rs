//! The way into a model and out of its queue: limits, permits, submission and cancellation. Runs on
//! the thread that brings the request, and blocks on nothing.

pub mod cancel;
pub mod engine;
pub mod refusal;
pub mod request_permits;
pub mod sequence;
pub mod shm_completion;
pub mod submit;
#[cfg(test)]
mod tests;

pub use refusal::{enter_limits, refuse, refuse_over_limit};
pub use request_permits::{RequestPermits, TryAcquireError};
pub use submit::admit;
