//! What a draft must agree with before it becomes a request: the names, types, shapes and sizes of
//! its model. Pure: no permit is taken here. Called by `admission`, and for the inputs of a
//! warm-up.

pub mod draft;
pub mod raw;
pub(crate) mod request_label;
pub mod tensor;

pub use tensor::is_content_checked;
