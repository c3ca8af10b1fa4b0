//! The serving core: what a request is, which models there are, how batches form, who executes
//! them, and what is counted.
//!
//! No sockets and no foreign code: `frontend` brings requests in and takes responses out through
//! [`Completion`], `ffi` executes through [`Backend`], [`Model`] and [`Instance`]. `scheduler` is
//! pure: it reads no clock, starts no thread, does no I/O.

#![forbid(unsafe_code)]

pub mod admit;
mod backend;
pub mod cache;
pub mod clock;
pub mod core;
pub mod credits;
pub mod ensemble;
mod error;
pub mod host_policy;
pub mod labels;
pub mod limits;
pub mod model;
mod model_bytes;
mod model_file;
mod observer;
mod order;
pub mod progress;
mod queue;
pub mod rate_limiter;
pub mod readiness;
pub mod regions;
pub mod registry;
pub mod request;
pub mod request_log;
mod response;
pub mod revision;
pub mod sequence;
mod shown;
#[cfg(test)]
mod simulation;
pub mod states;
pub mod stats;
mod synthetic;
#[doc(hidden)]
pub mod testing;
pub mod timer_thread;
pub mod topology;
pub mod trace;
pub mod warm_up;

pub use backend::{
    Backend, BackendHost, BackendSpec, Batch, BatchStrategy, ExecutionPolicy, Instance,
    InstanceSpec, LoadContext, Model, ReadinessCheck,
};
pub use observer::{RequestObserver, cancel};

pub use conch_scheduler::rate_limit::ResourceCapacity;
pub use credits::{Credits, StreamBacklog};
pub use error::{Code, Error, Truncated, truncated};
pub use host_policy::HostPolicies;
pub use limits::Tenant;
pub use model::{InFlightPermit, ModelVersion, Rejected};
pub use queue::{PendingPermit, withdraw};
pub use regions::Regions;
pub use registry::{Registry, RegistryReader, Snapshot};
pub use request::{
    CorrelationId, Draft, DraftInput, Input, OwnedRequest, Parameter, ParameterValue, Request,
    RequestContext, RequestHandle, Shape, Timestamps, WeakRequestHandle,
};
pub use response::{Completion, Delivery, Output, PendingResponses, Response};
pub use sequence::reschedule;
