//! The TensorFlow backend: serves GraphDefs (`model.graphdef`) and SavedModels
//! (`model.savedmodel`).
//!
//! TensorFlow itself is a library that is opened at run time; [`engine::PLACE`] says where it is
//! looked for. One batch is one run of a session.

#![deny(unsafe_code)]

mod check;
mod complete;
mod element_type;
mod engine;
mod files;
mod loaded;
mod messages;
mod model;
mod retention;
mod settings;
mod shared;
mod signature;
#[allow(unsafe_code)] // The one door to the C library.
mod tf;
mod validate;

conch_backend_sdk::export_backend!(model::Backend);
