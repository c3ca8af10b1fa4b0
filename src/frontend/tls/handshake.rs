//! From a connection's first byte to where both sides may speak.

use std::future::poll_fn;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::task::Poll;
use std::time::Duration;

use conch_engine::clock;
use conch_log::LogLimiter;
use rustls::server::UnbufferedServerConnection;

use super::config::TlsConfig;
use super::handshakes::Handshake;
use super::session::TlsSession;
use super::stream::ConnectionStream;
use crate::shard::{Shard, ShardStream, Timer};

/// From the first byte of a connection of HTTP/1 to the end of its handshake, as for gRPC. Two
/// round trips, and what an overloaded machine needs for its keys.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For how long, and how much, a peer that was refused may go on sending: closing on unread bytes
/// would reset the connection, and could take away from the peer what it was told.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 256 << 10;

/// [`accept`] for a connection of HTTP/1, in time and, unless it `outlasts_drains`, before the
/// shard drains: a peer that has not introduced itself yet has nothing here to lose.
pub(crate) async fn accept_in_time(
    shard: &Shard,
    mut stream: ShardStream,
    tls: &TlsConfig,
    outlasts_drains: bool,
) -> Option<ConnectionStream> {
    let session = {
        let mut drained = pin!(shard.drained());
        let mut accepted = pin!(accept(shard, &mut stream, tls));
        let mut timer = Timer::after(HANDSHAKE_TIMEOUT);
        poll_fn(|context| {
            if let Poll::Ready(outcome) = accepted.as_mut().poll(context) {
                return Poll::Ready(outcome);
            }
            if !outlasts_drains && drained.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut timer).poll(context).map(|()| None)
        })
        .await?
    };
    Some(ConnectionStream::encrypted(stream, session))
}

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
    let connection = UnbufferedServerConnection::new(tls.config()).ok()?;
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
            handshake.wait_since(clock::monotonic_ns());
            refuse(stream, &mut session, tls).await;
            return None;
        }
        poll_fn(|context| session.poll_flush(stream, context))
            .await
            .ok()?;
    }
    // Nothing is sent after the peer's last message, and it may hold its first request back until
    // that is acknowledged.
    let _ = conch_net::acknowledge_now(stream.socket());
    tls.listener.accepts(session.protocol()).then_some(session)
}

/// Tells the peer that it is not accepted, if the socket takes that, and lets it read it.
async fn refuse(stream: &mut ShardStream, session: &mut TlsSession, tls: &TlsConfig) {
    match tls.listener.plain_refusal(session.first_byte()) {
        Some(words) => {
            let _ = conch_net::send_vectored(stream.socket(), &[IoSlice::new(words)]);
        }
        // The alert.
        None => {
            poll_fn(|context| Poll::Ready(session.poll_flush(stream, context).is_ready())).await;
        }
    }
    conch_net::finish_sending(stream.socket());
    let mut timer = Timer::after(LINGER);
    let mut received_bytes = 0;
    poll_fn(|context| {
        let mut room = [0; 4 << 10];
        while received_bytes < LINGER_BYTES_MAX {
            match stream.poll_receive(context, &mut room) {
                Poll::Ready(Ok(count)) if count > 0 => received_bytes += count,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Pin::new(&mut timer).poll(context),
            }
        }
        Poll::Ready(())
    })
    .await;
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
