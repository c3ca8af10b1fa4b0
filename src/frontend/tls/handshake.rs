//! From a connection's first byte to where both sides may speak.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;
use std::task::Poll;

use conch_engine::clock;
use conch_log::LogLimiter;
use rustls::ServerConnection;

use super::config::TlsConfig;
use super::files::HTTP2;
use super::handshakes::Handshake;
use super::session::TlsSession;
use crate::shard::{Shard, ShardStream};

/// None for a peer that does not get there, whatever the reason; it has been told if TLS has a word
/// for that, but for those that are displaced because too many handshakes are under way: their
/// connection is closed.
pub(crate) async fn accept(
    shard: &Shard,
    stream: &mut ShardStream,
    tls: &TlsConfig,
) -> Option<Box<TlsSession>> {
    // A peer that is gone already has no address any more; it will not get far.
    let peer =
        conch_net::peer_address(stream.socket()).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let (handshake, displaces) = shard.handshakes.begin(peer, clock::monotonic_ns());
    if displaces {
        complain(peer, shard.options.grpc_connections.handshakes_max);
    }
    let session = complete(shard, stream, tls, peer, &handshake);
    handshake.unless_displaced(session).await
}

/// Keys are at work here for a millisecond, so each step is done on the shard's thread for
/// handshakes. The caller keeps the time.
async fn complete(
    shard: &Shard,
    stream: &mut ShardStream,
    tls: &TlsConfig,
    peer: IpAddr,
    handshake: &Handshake<'_>,
) -> Option<Box<TlsSession>> {
    let connection = ServerConnection::new(tls.config()).ok()?;
    let mut session = TlsSession::new(connection);
    let mut is_first = true;
    while session.is_handshaking() {
        handshake.wait_since(clock::monotonic_ns());
        let count = poll_fn(|context| session.poll_fill(stream, context)).await;
        if count.ok()? == 0 {
            return None;
        }
        handshake.wait_since(0);
        let step = move || {
            let outcome = session.process();
            (session, outcome)
        };
        let (done, outcome) = shard.offload_handshake(peer, is_first, step).await;
        session = done;
        // A hello in pieces is still the first step.
        is_first = is_first && !session.has_unsent();
        if outcome.is_err() {
            // The alert, if the socket takes it.
            poll_fn(|context| Poll::Ready(session.poll_flush(stream, context).is_ready())).await;
            conch_net::finish_sending(stream.socket());
            return None;
        }
        poll_fn(|context| session.poll_flush(stream, context))
            .await
            .ok()?;
    }
    // gRPC is HTTP/2 by agreement only; who does not ask for it means something else.
    (session.protocol() == Some(HTTP2)).then_some(session)
}

/// Writes a line, not more often than once per second: anyone can cause it.
fn complain(peer: IpAddr, count_max: usize) {
    static LIMITER: LazyLock<LogLimiter> = LazyLock::new(LogLimiter::default);
    LIMITER.warn(
        clock::monotonic_ns(),
        format_args!(
            "closed a connection before the end of its TLS handshake: \
             {count_max} handshakes are under way (--grpc-handshakes-max); \
             the last to come was from {peer}"
        ),
    );
}
