//! What backends share that run models with somebody else's engine, a library opened at run time.
//!
//! Such a backend implements [`Session`] (and [`Output`]) for what its engine makes of a model
//! file, and the rest is here: finding the library ([`LibraryPlace`]), opening it ([`Library`],
//! [`Engines`], [`OnlyEngine`]) and finding its functions ([`functions!`](crate::functions),
//! [`opaque_types!`](crate::opaque_types)), the model's file ([`model_file`]), completing
//! ([`complete`]) and checking ([`validate`]) a configuration against the model's [`Signature`],
//! the threads of an instance ([`threads`]), and executing a batch as one run ([`Runner`]): inputs
//! joined, the session run, outputs cut apart into responses and implicit states, with inputs and
//! outputs that describe the batch, and ragged ones.
//!
//! Messages are those of upstream's backends, which clients and operators know.

#![deny(unsafe_code)]

#[allow(unsafe_code)] // Texts at C pointers.
mod bindings;
pub mod complete;
mod delivery;
mod depth;
mod device_delivery;
mod device_run;
mod engines;
mod host_run;
mod in_flight;
mod inputs;
#[allow(unsafe_code)] // The one door to the loader.
mod library;
mod library_place;
pub mod model_file;
mod only_engine;
mod plan;
mod response_memory;
mod runner;
mod runner_parts;
mod session;
mod session_instance;
mod settings;
mod states;
mod targets;
mod tensor;
pub mod threads;
mod type_numbers;
pub mod validate;

pub use bindings::{c_path, c_string, text_at};
pub use depth::InFlightDepth;
pub use engines::Engines;
pub use library::{Binding, Library};
pub use library_place::{LibraryPlace, beside};
pub use only_engine::OnlyEngine;
pub use runner::Runner;
pub use session::{EnqueueSession, Output, Session};
pub use session_instance::{SessionInstance, SessionModel};
pub use settings::{
    DEFAULT_MAX_BATCH_SIZE, default_max_batch_size, first_gpu, gpu_instance_error, prefer_cpus,
    refuse_gpu,
};
pub use tensor::{
    Contents, Feed, FeedData, Memory, OutputBuffer, OutputData, Signature, Target, TensorInfo,
};
pub use type_numbers::TypeNumbers;
