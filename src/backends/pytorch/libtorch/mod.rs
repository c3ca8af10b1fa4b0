//! The one door to libtorch: its library, its tensors, the shim for TorchScript, and libraries that
//! AOTInductor made. All `unsafe` of the backend is here.
//!
//! What a function of torch returns is owned by the wrapper that it is returned in, which frees it.
//! Libraries of torch are never closed: their threads and thread-locals outlive any model. Those of
//! models are, after the last container of theirs.

mod compiled;
mod cuda;
mod library;
mod module;
mod shim;
mod stream_guard;
mod tensor;
mod torch;

pub use compiled::{ModelContainer, ModelLibrary};
pub use cuda::CUDA_LIBRARY;
pub use module::{Input, InputValue, MapLocation, Module, Outputs, Strings};
pub use shim::RunOptions;
pub use tensor::Tensor;
pub use torch::{CHECK_VARIABLE, PLACE, Torch, check_inputs_of_compiled_models};
