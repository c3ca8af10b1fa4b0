//! From a connection's first byte to where both sides may speak.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use rustls::ServerConnection;

use super::Tls;
use super::files::HTTP2;
use super::session::Session;
use crate::shard::{Shard, Stream};

/// None for a peer that does not get there, whatever the reason; it has been told if TLS has a word for that.
///
/// Keys are at work here for a millisecond, so each step is done on the shard's offload thread. The caller keeps the time.
pub(crate) async fn accept(shard: &Shard, stream: &mut Stream, tls: &Tls) -> Option<Box<Session>> {
    let connection = ServerConnection::new(Arc::clone(&tls.config)).ok()?;
    let mut session = Session::new(connection);
    while session.is_handshaking() {
        let count = poll_fn(|context| session.poll_fill(stream, context)).await;
        if count.ok()? == 0 {
            return None;
        }
        // Gone with this future: work for a peer that was given up is not done.
        let interest = Arc::new(());
        let still = Arc::downgrade(&interest);
        let (done, outcome) = shard
            .offload(move || {
                let is_wanted = still.strong_count() > 0;
                let outcome = is_wanted.then(|| session.process());
                (session, outcome)
            })
            .await;
        drop(interest);
        session = done;
        if !matches!(outcome, Some(Ok(()))) {
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
