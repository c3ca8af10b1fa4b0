//! The clients in the executable: `conch infer` and `conch bench` ask a running server of the
//! KServe v2 protocol, conch or another, and `conch top` reads a stream by [`open_stream`].
//!
//! - [`options`]: what is to be done, as the command line says it.
//! - `http`: requests to one server, over TCP, TLS or a Unix socket.
//! - `model`: what the server says of a model's tensors.
//! - `tensor`, `picture`, `input`: from words and files to tensors.
//! - `request`, `answer`, `show`: the wire, and what a terminal sees.
//! - [`load`]: many requests at a rate. `bench`: which rates, and what is told of them.
//!
//! Nothing of it runs in a server. It blocks, on the caller's thread.
#![forbid(unsafe_code)]

mod answer;
mod bench;
mod error;
mod http;
mod infer;
mod input;
pub mod load;
mod model;
pub mod options;
mod picture;
mod printable;
mod request;
mod show;
mod tensor;
mod tls;
mod url;

pub use bench::bench;
pub use error::ClientError;
pub use http::{StreamingResponse, open_stream};
pub use infer::infer;
pub use url::ServerUrl;
