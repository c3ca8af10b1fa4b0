//! The serving core: what a request is, which models there are, how batches form, who executes them, and what is counted.
//!
//! No sockets and no foreign code: `frontend` brings requests in and takes responses out through [`Completion`], `ffi` executes
//! through [`Backend`], [`Model`] and [`Instance`]. `scheduler` is pure: it reads no clock, starts no thread, does no I/O.

#![forbid(unsafe_code)]

pub mod admit;
mod agent;
mod asker;
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
pub mod gate;
mod host_policy;
mod instances;
pub mod labels;
mod lifecycle;
pub mod metrics;
mod misplaced;
mod model;
mod model_bytes;
mod model_file;
mod order;
mod progress;
mod queue;
mod rate;
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
mod scheduler;
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
pub mod timekeeper;
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
pub use asker::{Asker, cancel};
pub use backend::{
    Backend, BackendHost, BackendSpec, Batch, BatchStrategy, Checkup, ExecutionPolicy, Instance,
    InstanceSpec, LoadContext, Model,
};

pub use control::{ControlMode, LOAD_FILES_MAX, Overrides};
pub use credits::{Backlog, Credits};
pub use demand::Demand;
pub use error::{Code, Error, Truncated, truncated};
pub use gate::Tenant;
pub use host_policy::HostPolicies;
pub use model::{ModelVersion, NoPlace, Reservation};
pub use queue::{Place, withdraw};
pub use rate::Capacity;
pub use regions::Regions;
pub use registry::{Reader, Registry, Snapshot};
pub use remote::Remote;
pub use request::{
    CorrelationId, Draft, DraftInput, Input, Live, Origin, Parameter, ParameterValue, Request,
    Shape, Stamps, Ticket, WeakTicket,
};
pub use response::{Completion, Delivery, Departures, Output, Response};
#[doc(hidden)]
pub use scheduler::measure::Batcher;
pub use scratch::Scratch;
pub use sequence::reschedule;
pub use server::{Options, Server};
