//! The way into a model and out of its queue: admission, its limits, and cancellation. Runs on the
//! thread that brings the request, and blocks on nothing.

pub mod cancel;
pub mod engine;
pub mod limits;
pub mod raw;
pub mod refusal;
pub(crate) mod request_label;
pub mod sequence;
pub mod submit;
pub mod tensor;
#[cfg(test)]
mod tests;
pub mod validate;

pub use refusal::{enter_limits, refuse};
pub use submit::admit;
pub use tensor::is_content_checked;
