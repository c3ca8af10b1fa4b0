//! HTTP/1.1: the inference protocol, and what the metrics listener shares with it.
//!
//! `connection` moves bytes and keeps the rules of HTTP (`head`, `chunked`, `input`, `answer`);
//! `service` decides what a request is answered with (`route`, `infer`, `generate`, `repository`,
//! `shared_memory`, `logging`, `trace`); `json` reads and writes JSON. Runs on a shard; large JSON
//! leaves it.

pub(crate) mod answer;
pub(crate) mod base64;
mod chunked;
mod coding;
pub(crate) mod connection;
pub(crate) mod cors;
mod deadline;
pub(crate) mod dialect;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod generate;
pub(crate) mod head;
mod infer;
mod input;
pub(crate) mod json;
mod logging;
pub(crate) mod measure;
pub(crate) mod metrics_page;
pub(crate) mod repository;
pub(crate) mod route;
pub(crate) mod service;
mod shared_memory;
mod trace;

pub(crate) use service::serve;
