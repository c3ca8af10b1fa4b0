//! The SageMaker listener: one model at `/invocations`, or many, loaded and unloaded by `/models`.
//!
//! Inferences are those of the HTTP listener, with the length of the JSON in the media type.
//! Statuses are SageMaker's: whatever goes wrong with a model of a multi-model endpoint is a 400,
//! and 507 if memory ran out.

mod catalog;
mod control;
mod options;
mod place;
mod service;

pub use options::{InferenceType, SageMakerOptions};
pub(crate) use service::serve;
