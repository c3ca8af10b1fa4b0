//! The TensorRT backend: serves plans (`model.plan`) on GPUs.
//!
//! TensorRT is a library that is opened at run time, named by the backend setting `library` or the
//! environment variable `CONCH_TENSORRT_LIBRARY`, or found beside this one, or by the loader. Its
//! interface is C++; a shim compiled on the machine (`scripts/build-tensorrt-shim`) gives it one in
//! C. Instances enqueue their batches and never wait: while TensorRT computes one, inputs of the
//! next are on their way.

#![deny(unsafe_code)]

mod buffers;
mod capture;
mod complete;
mod executor;
mod facts;
mod graphs;
mod inputs;
mod limits;
mod model;
mod outputs;
mod plan_file;
mod profiles;
mod roles;
mod settings;
#[allow(unsafe_code)] // The one door to TensorRT.
mod trt;
mod validate;

conch_backend_sdk::export_backend!(model::Backend, stream);
