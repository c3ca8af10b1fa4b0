//! OpenVINO itself: the functions of its C library, and safe wrappers of what the backend needs of
//! them. The only place of this crate with `unsafe`.
//!
//! A binding of its own instead of the crate openvino-sys, which keeps one library for the whole
//! process and panics where a function is missing: here models may name libraries of their own, in
//! several versions, and a library that lacks something is an error of the model.
//!
//! The C library catches the exceptions of the C++ one and hands them over as a status and a text.

mod aligned_buffer;
mod compiled;
mod core;
mod element_types;
mod model;
mod request;
mod runtime;
mod table;
mod tensor;

pub use aligned_buffer::AlignedBuffer;
pub use compiled::CompiledModel;
pub use core::Core;
pub use model::{Model, Port};
pub use request::InferRequest;
pub use runtime::{PLACE, Runtime};
pub use tensor::Tensor;
