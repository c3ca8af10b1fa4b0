//! TensorFlow itself: its C functions, and safe wrappers of what the backend needs of them. The
//! only place of this crate with `unsafe`.
//!
//! The library is opened at run time, so nothing here is needed to build. Version floor: 2.12, the
//! oldest that is tested. Every function used is older than that.
//!
//! Who frees what: a [`Library`] stays loaded for good, since its threads outlive every session. A
//! [`Graph`] owns its session and graph, and holds the library. A tensor over memory of a request
//! lives as long as one run; what TensorFlow does with that memory afterwards is the business of
//! `retention.rs`.

mod graph;
mod library;
mod options;
mod table;
mod tensor;

pub use graph::{Graph, Port};
pub use library::{Library, PLACE};
pub use tensor::Output;
