//! The ONNX Runtime backend: serves `model.onnx` files.
//!
//! ONNX Runtime itself is a library that is opened at run time: named by the model parameter or
//! backend setting `onnxruntime-library`, by the environment variable `CONCH_ONNXRUNTIME_LIBRARY`,
//! or found as `libonnxruntime.so*` beside this one. Where none is found, an embedded engine serves
//! what it can. One batch is one run,
//! which an instance on a GPU leaves on its stream where it can.

#![deny(unsafe_code)]

mod accelerators;
#[cfg(feature = "embedded")]
mod embedded;
mod engine;
mod in_flight;
mod model;
#[cfg(feature = "embedded")]
mod onnx_file;
#[allow(unsafe_code)] // The one door to the C library.
mod ort;
mod settings;

conch_backend_sdk::export_backend!(model::Backend, stream);
