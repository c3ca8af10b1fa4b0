//! DALI's C API, version 2, as safe Rust.
//!
//! Who frees what: a [`Pipeline`] destroys its pipeline, [`Outputs`] what a run made, before the
//! pipeline runs again; an [`InputList`] drops its reference when it was fed, and DALI frees the
//! memory when no operator needs it any more. The library stays open until the process ends.

mod pipeline;
mod runtime;
mod table;
mod tensors;
mod types;

pub use pipeline::{Device, Options, Pipeline, Port};
pub use runtime::Runtime;
pub use tensors::{InputList, OutputList, Outputs};
