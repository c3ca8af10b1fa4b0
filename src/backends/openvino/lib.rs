//! The OpenVINO backend: serves models in OpenVINO's own format (`model.xml` and `model.bin`), and
//! those of ONNX, TensorFlow, TensorFlow Lite and PaddlePaddle, which OpenVINO reads directly.
//!
//! OpenVINO is a library that is opened at run time. One batch is one run of an inference request;
//! the instances of a model share what was compiled for it, as long as they share their CPUs.

#![deny(unsafe_code)]

mod backend;
mod batching;
mod layout;
#[allow(unsafe_code)] // The one door to the C library.
mod ov;
mod session;
mod settings;
mod shapes;
mod shared_models;
mod variables_index;
mod workers;

conch_backend_sdk::export_backend!(backend::Backend, detached);
