//! Inference requests and responses in HTTP's form: JSON, with tensors inside it or behind it.

pub(crate) mod call;
pub(crate) mod decode;
pub(crate) mod encode;
mod region;
