//! The DALI backend: serves pipelines that NVIDIA DALI serialised (`model.dali`), or that a
//! `dali.py` defines.
//!
//! DALI itself is a set of libraries that is opened at run time, through the second version of its
//! C API (`dali.h`), which returns errors where the first lets exceptions out. One batch is one
//! run of a pipeline; a batch that fails is run again request by request, so that a bad image fails
//! its own request only.

#![deny(unsafe_code)]

mod arguments;
mod autoserialize;
mod backend;
#[allow(unsafe_code)] // The one door to the C library.
mod capi;
mod complete;
mod config_text;
mod deliver;
mod engine;
mod feed;
mod instance;
mod pipeline_file;
mod settings;
mod signature;
mod validate;
mod wire;

conch_backend_sdk::export_backend!(backend::Backend);
