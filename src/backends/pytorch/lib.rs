//! The PyTorch backend: serves TorchScript (`model.pt`) and models compiled by AOTInductor
//! (`model.pt2`).
//!
//! libtorch is a library that is opened at run time: `libtorch_cpu.so`, named by the backend
//! setting `library` or the environment variable `CONCH_PYTORCH_LIBRARY`, or found beside this one.
//! TorchScript has no C interface; a shim compiled on the machine (`scripts/build-torch-shim`)
//! gives it one. AOTInductor's models are libraries with a C interface of their own. One batch is
//! one run.

#![deny(unsafe_code)]

mod archive;
mod call_spec;
mod compiled;
mod elf;
mod failure;
#[allow(unsafe_code)] // The one door to libtorch.
mod libtorch;
mod model;
mod naming;
mod nesting;
mod package;
mod session;
mod settings;
mod tensors;
mod wiring;

conch_backend_sdk::export_backend!(model::Backend, stream);
