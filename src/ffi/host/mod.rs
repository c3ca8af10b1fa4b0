//! Calling backends: finding their libraries, and driving them through the life that
//! `tritonbackend.h` describes.
//!
//! Implements the engine's `BackendHost`, `Backend`, `Model`, `Instance` and `ReadinessCheck`.
//! Loading threads call everything but `Instance::execute`, which runs on the instance's core, and
//! `ReadinessCheck::ask`, which runs on the model's readiness prober.

mod agent;
mod agent_model;
mod agents;
mod backend;
mod cache;
mod child_processes;
mod execution;
mod facts;
mod instance;
mod libraries;
mod library;
mod library_lock;
mod lock;
mod model;
mod model_handle;
mod options;
mod output;
mod queue_batcher;
mod readiness_check;
mod request;
mod search;
mod server;
mod shared;
mod state;
mod strategy;

pub(crate) use cache::CacheBuffer;
pub use cache::cache_config;
pub use libraries::BackendLibraries;
pub(crate) use model::LoadedModel;
pub use options::HostOptions;
pub(crate) use output::{BackendOutput, LentRelease};
pub(crate) use request::{
    BackendInput, BackendParameter, BackendParameterValue, BackendRequest, BackendResponse,
    ResponseFactory, ResponseSender,
};
