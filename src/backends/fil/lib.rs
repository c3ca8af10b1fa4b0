//! The forest inference backend: serves decision forests of XGBoost, LightGBM and Treelite on CPUs.
//!
//! `formats` reads a model file into the description of `forest::model`, which `forest` compiles
//! into a layout that is quick to traverse. One batch is one run over all of its rows.

#![forbid(unsafe_code)]

mod backend;
mod complete;
mod forest;
mod formats;
mod instance;
mod served;
mod settings;
mod signature;

conch_backend_sdk::export_backend!(backend::Backend);
