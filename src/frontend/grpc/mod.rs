//! gRPC over HTTP/2.
//!
//! A connection is one task on its shard ([`connection`]), which drives all its calls ([`calls`]):
//! first every answer that is due, then the socket once. [`call`] takes one call from headers to
//! trailers, [`control`] answers the questions about server and models, and [`infer`] reads tensors
//! from DATA frames into aligned blocks and sends them from where they lie.

mod body;
mod call;
mod calls;
mod compression;
mod connection;
mod control;
mod delays;
mod forward;
mod frame;
mod goaway;
mod handler;
mod infer;
mod logging;
pub(crate) mod measure;
mod method;
mod peer_timeout;
mod readiness;
mod reflection;
mod reply;
mod repository;
mod settings;
mod shared_memory;
mod status;
mod stream;
mod timeout;
mod trace;
mod transport;
mod uploads;
mod wire;

pub(crate) use connection::serve;
pub use delays::ServerDelays;
pub(crate) use handler::note_handlers;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use infer::fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<A, B, C, D, E, F>(_: fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    /// 10,000 connections, and calls in flight, are that many of these; what is large but
    /// short-lived is boxed on its own.
    #[test]
    fn states_are_small() {
        println!(
            "{} {}",
            bytes_of(call::run),
            bytes_of(|shard, stream, guard, (), ()| serve(shard, stream, guard))
        );
        let call_bytes = bytes_of(call::run);
        assert!(call_bytes <= 1344, "{call_bytes}");
        let connection_bytes = bytes_of(|shard, stream, guard, (), ()| serve(shard, stream, guard));
        assert!(connection_bytes <= 192, "{connection_bytes}");
        // With its counts it fits into 640 bytes.
        let state_bytes = size_of::<transport::Http2Connection>();
        assert!(state_bytes <= 616, "{state_bytes}");
    }
}
