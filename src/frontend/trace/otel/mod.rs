//! Traces as spans, to an OpenTelemetry collector: upstream's `opentelemetry` mode.
//!
//! A request carries its place in the client's trace (`position.rs`), which backends are told in
//! the words of W3C Trace Context (`context.rs`). A thread of its own makes spans of finished
//! traces (`spans.rs`), collects them into batches and posts those (`exporter.rs`, `post.rs`).

pub(super) mod context;
pub(super) mod exporter;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
pub(super) mod options;
pub(super) mod position;
mod post;
mod spans;
pub(super) mod url;

#[cfg(test)]
mod tests;
