//! The entry points that a server looks up in a plug-in, as generic functions;
//! [`export_backend!`](crate::export_backend) gives them their C names.
//!
//! Every one catches panics: they must not unwind into the server. Who frees what: the state
//! pointer of a backend, model and instance is a `Box` made by its Initialize and taken back by its
//! Finalize; the server finalises instances before their model and models before their backend, so
//! the references between the boxes hold.

mod cells;
mod execution;
mod export;
mod lifecycle;
mod stream;

pub use execution::{
    instance_execute, instance_execute_begin, instance_execute_detached, instance_execute_end,
};
pub use lifecycle::{
    attributes, finalize, initialize, instance_finalize, instance_initialize, instance_ready,
    model_finalize, model_initialize,
};
pub use stream::{instance_depth_max, instance_enqueue, instance_execute_stream, instance_poll};

type RawError = *mut conch_abi::TRITONSERVER_Error;
