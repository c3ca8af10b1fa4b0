//! The server within another program: what the in-process half of `tritonserver.h` works on.
//!
//! An embedder makes a server from options, and requests that carry its own memory and callbacks.
//! Backends that ask the server which runs them come the same way.
//!
//! Which thread calls back:
//! - responses: the thread that sent them, which is normally the instance's core; a thread of the
//!   backend's own if that answers; the timer thread, if the request timed out or was cancelled
//!   while it waited; the caller of `ServerInferAsync` itself, within that call, if the response
//!   was cached, or the model lets callers execute (`caller.rs`). Never a thread that is inside
//!   `InferenceRequestCancel`, and never two at once for one request: responses come in the order
//!   in which they were sent.
//! - release of the request: the thread on which the backend released it, else as above.
//! - allocators: the thread on which the backend asks for its buffers; release, whoever deletes the
//!   response.
//! - traces: the thread that reaches the station.
//!
//! No lock is held during any of them, so they may call anything but the end of their own server,
//! which waits for them.

mod allocator;
mod callbacks;
mod caller;
mod check;
mod embedded_request;
mod options;
mod placement;
mod request;
mod response;
mod start;
mod trace;

pub(crate) use allocator::AllocatorFunctions;
pub(crate) use callbacks::EmbedderCallback;
pub use check::{check_by_loading, examine};
pub(crate) use embedded_request::{EmbeddedRequest, InputExtra};
pub(crate) use options::ServerOptions;
pub(crate) use placement::{PlacedBuffer, RequestAllocator};
pub(crate) use request::{CorrelationText, InferenceRequest, MemoryChunk};
pub(crate) use response::location;
pub use start::start;
pub(crate) use trace::{TraceFunctions, TraceHandle, handle_of};
