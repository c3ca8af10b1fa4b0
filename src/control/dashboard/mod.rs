//! What an operator sees of a running server, once per second: a document with what was counted
//! since the one before, and what is now.
//!
//! [`DashboardSampler`] reads the counters that metrics and statistics have as well. It belongs to
//! one thread, of whoever shows the documents; it locks and allocates, so that is no shard.

mod counts;
mod document;
mod process;
mod sampler;
#[cfg(test)]
mod tests;

pub use sampler::{DashboardSampler, MODELS_MAX};
