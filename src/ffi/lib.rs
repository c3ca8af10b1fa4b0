//! The boundary to C, both ways: `export` is what plug-ins and embedders call, `host` calls
//! plug-ins.
//!
//! Who frees what:
//!
//! - A `TRITONSERVER_Error*` belongs to whoever it is returned to. Errors that a plug-in returns
//!   are deleted here (`boundary::accept`).
//! - Objects made by a `…New` function belong to the caller until its `…Delete`. `ResponseSend`
//!   consumes the response, never the error.
//! - `TRITONBACKEND_Backend*`, `Model*`, `ModelInstance*` are lent to the plug-in between their
//!   Initialize and the return of their Finalize. `Input*` and `Output*` live as long as their
//!   request and response.
//! - `TRITONBACKEND_Request*` belongs to the plug-in from Execute until RequestRelease, unless
//!   Execute returns an error.
//! - `TRITONSERVER_InferenceRequest*` is lent to the server from a successful ServerInferAsync
//!   until its release callback, and so is all data that it refers to; a trace likewise.
//!   `TRITONSERVER_InferenceResponse*` belongs to the response callback, and gives its output
//!   buffers back to their allocator when it is deleted.
//! - `TRITONSERVER_Server*` is a reference: the embedder's ends with ServerDelete, backends have
//!   theirs as long as their models.
//! - Messages are the caller's, except those of BackendConfig and ModelInstanceHostPolicy, which
//!   are lent.
//!
//! Thread-locals: one, the batch that a core executes (`host::execution`). Statics: the instance
//! counter there, the open backends, which servers share (`host::shared`), and the logger and
//! metrics of `engine`, because the C API reaches them without a handle.
//!
//! No call into a plug-in or an embedder's function leaves this crate but through `guard` or
//! `embed::callbacks`, and no panic leaves an exported function.

mod boundary;
mod embed;
pub mod export;
mod guard;
pub mod host;
mod objects;

pub use embed::{check_by_loading, examine, start};
