//! The data plane: what a request is, how it gets into a model, how batches form, who executes
//! them, and what is counted.
//!
//! No sockets, no repositories and no foreign code: `frontend` and `ffi` bring requests in and take
//! responses out through [`Completion`], `control` loads models, `ffi` executes through
//! [`Backend`], [`Model`] and [`Instance`].

#![forbid(unsafe_code)]

pub mod admission;
pub mod backend;
pub mod cache;
pub mod clock;
pub mod ensemble;
mod error;
pub mod execution;
pub mod flow_control;
pub mod gpus;
pub mod limits;
pub mod model;
pub mod private_copy;
pub mod request;
pub mod response_order;
pub mod sequence;
pub mod shared_memory;
#[cfg(test)]
mod simulation;
pub mod tensor;
#[doc(hidden)]
pub mod testing;
pub mod threads;
pub mod validation;

pub use admission::cancel::{Cancellation, cancel};
pub use admission::engine::{Engine, ModelLoads, RequestTarget};
pub use admission::request_permits::{RequestPermits, TryAcquireError};
pub use backend::{
    Backend, BackendHost, BackendSpec, Batch, BatchStrategy, ExecutionPolicy, Instance,
    InstanceSpec, LoadContext, Model,
};
pub use conch_scheduler::rate_limit::ResourceCapacity;
pub use error::{Code, Error, Truncated, truncated};
pub use flow_control::backlog::StreamBacklog;
pub use flow_control::credits::Credits;
pub use limits::{LimitOwner, ReachedLimit, Tenant};
pub use threads::host_policy::HostPolicies;

pub use model::readiness::ReadinessCheck;
pub use model::registry::{Registry, RegistryReader, Snapshot};
pub use model::version::{InFlightPermit, ModelVersion, PendingPermit, Rejected, VersionParts};
pub use request::context::{
    OwnedRequest, Request, RequestContext, RequestHandle, WeakRequestHandle,
};
pub use request::correlation_id::CorrelationId;
pub use request::draft::{Draft, DraftInput, DraftInputs};
pub use request::features::RequestFeatures;
pub use request::inline::{
    INLINE_BYTES_MAX, InlineBudget, InlineExecution, InlineOffer, InlineTurn, Progress,
};
pub use request::observer::RequestObserver;
pub use request::parameter::{Parameter, ParameterValue};
pub use request::pending_responses::PendingResponses;
pub use request::response::{Completion, Delivery, Response, ResponseParts};
pub use request::sequence_flags::SequenceFlags;
pub use request::timestamps::Timestamps;
pub use sequence::reschedule;
pub use shared_memory::Regions;
pub use tensor::{Input, Output, RequestInputs, Shape, TENSORS_IN_PLACE};
