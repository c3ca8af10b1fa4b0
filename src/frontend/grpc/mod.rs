//! gRPC over HTTP/2; the only door to h2.
//!
//! A connection is one task on its shard ([`connection`]), which drives all its calls ([`calls`]): first every answer that is due, then
//! the socket once. [`call`] takes one call from headers to trailers, [`control`] answers the questions about server and models, and
//! [`infer`] reads tensors from DATA frames into aligned blocks and sends them from where they lie.

mod body;
mod call;
mod calls;
mod connection;
mod control;
mod frame;
mod infer;
pub(crate) mod measure;
mod method;
mod patience;
mod settings;
mod status;
mod timeout;
mod transport;
mod wire;

use std::rc::Rc;

use crate::shard::{Shard, Stream};

/// Serves one connection until it ends.
pub(crate) async fn serve(shard: Rc<Shard>, stream: Stream) {
    connection::serve(shard, stream).await;
}
