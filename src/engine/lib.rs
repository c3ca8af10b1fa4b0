//! The serving core: what a request is, which models there are, how batches form, who executes
//! them, and what is counted.
//!
//! No sockets and no foreign code: `frontend` brings requests in and takes responses out through
//! [`Completion`], `ffi` executes through [`Backend`], [`Model`] and [`Instance`]. `scheduler` is
//! pure: it reads no clock, starts no thread, does no I/O.

#![forbid(unsafe_code)]

pub mod admit;
mod agent;
mod backend;
pub mod cache;
pub mod clock;
mod control;
pub mod core;
pub mod credits;
pub mod demand;
pub mod description;
pub mod documents;
mod ensemble;
mod error;
mod fingerprint;
#[cfg(test)]
mod fixture;
mod host_policy;
mod instances;
pub mod labels;
mod lifecycle;
pub mod limits;
pub mod metrics;
mod misplaced;
mod model;
mod model_bytes;
mod model_file;
mod observer;
mod order;
mod progress;
mod queue;
mod rate_limiter;
pub mod readiness;
pub mod regions;
pub mod registry;
pub mod remote;
mod repositories;
mod repository;
mod request;
pub mod request_log;
mod response;
mod revision;
mod scratch;
mod sequence;
pub mod server;
mod shown;
#[cfg(test)]
mod simulation;
pub mod states;
pub mod stats;
mod synthetic;
pub mod tables;
pub mod timer_thread;
pub mod topology;
pub mod trace;
mod warm_up;

/// A backend's wish for instance groups, as [`conch_config`] resolves it.
pub use conch_config::PreferredGroup;
/// Opening files without waiting.
pub use conch_config::files;
/// The process's log.
pub use conch_log as log;
pub use conch_log::LogLimiter;

pub use agent::{AgentAction, AgentContext, AgentHost, AgentModel, NoAgents};
pub use backend::{
    Backend, BackendHost, BackendSpec, Batch, BatchStrategy, ExecutionPolicy, Instance,
    InstanceSpec, LoadContext, Model, ReadinessCheck,
};
pub use observer::{RequestObserver, cancel};

#[doc(hidden)]
pub use conch_scheduler::Batcher;
pub use conch_scheduler::rate_limit::ResourceCapacity;
pub use control::{ControlMode, LOAD_FILES_MAX, Overrides};
pub use credits::{Credits, StreamBacklog};
pub use demand::OnDemand;
pub use error::{Code, Error, Truncated, truncated};
pub use host_policy::HostPolicies;
pub use limits::Tenant;
pub use model::{InFlightPermit, ModelVersion, Rejected};
pub use queue::{PendingPermit, withdraw};
pub use regions::Regions;
pub use registry::{Registry, RegistryReader, Snapshot};
pub use remote::RemoteRepositories;
pub use request::{
    CorrelationId, Draft, DraftInput, Input, OwnedRequest, Parameter, ParameterValue, Request,
    RequestContext, RequestHandle, Shape, Timestamps, WeakRequestHandle,
};
pub use response::{Completion, Delivery, Output, PendingResponses, Response};
pub use scratch::ScratchDirectory;
pub use sequence::reschedule;
pub use server::{EngineOptions, Server};
