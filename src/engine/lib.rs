//! The serving core: what a request is, which models there are, how batches form, who executes them, and what is counted.
//!
//! No sockets and no foreign code: `frontend` brings requests in and takes responses out through [`Completion`], `ffi` executes
//! through [`Backend`], [`Model`] and [`Instance`]. `scheduler` is pure: it reads no clock, starts no thread, does no I/O.

mod backend;
mod error;
mod model;
mod request;
mod response;

pub use backend::{
    Backend, BackendHost, BackendSpec, Batch, ExecutionPolicy, Instance, InstanceSpec, LoadContext, Model, PreferredGroup,
};
pub use error::{Code, Error};
pub use model::{ModelVersion, Reservation};
pub use request::{
    CorrelationId, Draft, DraftInput, Input, Live, Origin, Parameter, ParameterValue, Request, Shape, Stamps, Ticket,
};
pub use response::{Completion, Delivery, Departures, Output, Response};
