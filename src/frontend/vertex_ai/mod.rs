//! The Vertex AI listener: a health route, and a predict route that can stand for others of the
//! HTTP listener.
//!
//! Both routes are Vertex AI's choice, told in environment variables. The header
//! X-Vertex-Ai-Triton-Redirect names what a POST to the predict route is to do instead of an
//! inference with the default model: whatever only reads, but for traces and logs.

mod options;
mod service;

pub use options::VertexAiOptions;
pub(crate) use service::serve;
