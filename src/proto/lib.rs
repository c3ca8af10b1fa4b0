//! Prost messages generated from our own `.proto` files. Names and numbers are those on Triton's
//! wire.
//!
//! Maps are `BTreeMap`, so that whatever is printed or encoded has one order. The raw tensor
//! contents of inference requests and responses are `bytes::Bytes`; every other `bytes` field is a
//! `Vec<u8>`.
#![forbid(unsafe_code)]
// The comments and shapes below come from the .proto files.
#![allow(
    clippy::doc_lazy_continuation,
    clippy::large_enum_variant,
    rustdoc::all
)]

pub mod catalog;

/// What encodes and decodes the messages; crates that use them need no prost of their own.
pub use prost::Message;

/// The messages of `model_config.proto` and `grpc_service.proto`.
pub mod inference {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

/// The messages of `health.proto`.
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// The messages of `reflection.proto`; those of `reflection_v1alpha.proto` are the same on the
/// wire.
pub mod reflection {
    include!(concat!(env!("OUT_DIR"), "/grpc.reflection.v1.rs"));
}

/// The messages of `otlp_trace.proto`, which the server sends and does not serve.
pub mod otlp {
    include!(concat!(env!("OUT_DIR"), "/otlp.rs"));
}

/// The serialised `FileDescriptorSet` of `model_config.proto`, for code that works by field name.
pub const MODEL_CONFIG_DESCRIPTORS: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin"));
