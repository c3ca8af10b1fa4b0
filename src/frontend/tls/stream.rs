//! A connection of HTTP/1, with or without TLS.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;

use super::session::TlsSession;
use crate::shard::ShardStream;

/// What encrypting or decrypting a byte costs, beside moving it.
const ENCRYPTION_FACTOR: usize = 4;

/// The plain bytes of a connection. Without TLS it costs one look at a pointer.
pub(crate) struct ConnectionStream {
    socket: ShardStream,
    session: Option<Box<TlsSession>>,
}

impl ConnectionStream {
    pub(crate) fn plain(socket: ShardStream) -> ConnectionStream {
        ConnectionStream {
            socket,
            session: None,
        }
    }

    pub(super) fn encrypted(socket: ShardStream, session: Box<TlsSession>) -> ConnectionStream {
        ConnectionStream {
            socket,
            session: Some(session),
        }
    }

    pub(crate) fn socket(&self) -> RawFd {
        self.socket.socket()
    }

    /// The names in the certificate that the peer has shown; none without.
    pub(crate) fn peer_names(&self) -> Box<[Box<str>]> {
        let session = self.session.as_ref();
        session
            .map(|session| session.peer_names())
            .unwrap_or_default()
    }

    /// Whether what the socket has tells what there is to receive.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.session.is_none()
    }

    /// The work of moving `bytes`, as that of so many plain ones.
    #[inline]
    pub(crate) fn work_bytes(&self, bytes: usize) -> usize {
        match self.session {
            None => bytes,
            Some(_) => bytes.saturating_mul(ENCRYPTION_FACTOR),
        }
    }

    /// Receives into `target`; 0 is the end of the stream.
    #[inline]
    pub(crate) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        target: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.session {
            None => self.socket.poll_receive(context, target),
            Some(session) => {
                let mut target = ReadBuf::new(target);
                session.poll_receive(&mut self.socket, context, &mut target)
            }
        }
    }

    /// Receives into `target` what has arrived; none if nothing has, or if only more than a look at
    /// the socket would tell.
    pub(crate) fn receive_now(&mut self, target: &mut [u8]) -> Option<io::Result<usize>> {
        match self.session {
            None => self.socket.receive_now(target),
            Some(_) => None,
        }
    }

    /// Sends some bytes of `source`. Until it is ready it is to be called again with the same.
    #[inline]
    pub(crate) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.session {
            None => self.socket.poll_send(context, source),
            Some(session) => {
                let pieces = [IoSlice::new(source)];
                session.poll_send_through(&mut self.socket, context, &pieces)
            }
        }
    }

    /// Sends some bytes of `pieces`, which hold at least one byte. Until it is ready it is to be
    /// called again with the same.
    #[inline]
    pub(crate) fn poll_send_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.session {
            None => self.socket.poll_send_vectored(context, pieces),
            Some(session) => session.poll_send_through(&mut self.socket, context, pieces),
        }
    }

    /// Says that nothing more will come.
    pub(crate) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(session) = &mut self.session {
            ready!(session.poll_close(&mut self.socket, context))?;
        }
        conch_net::finish_sending(self.socket.socket());
        Poll::Ready(Ok(()))
    }

    /// The same before the socket is closed, as far as it takes that right now. Nothing without
    /// TLS: closing says it.
    pub(crate) fn finish_now(&mut self) {
        if let Some(session) = &mut self.session {
            session.send_last(self.socket.socket(), &[]);
        }
    }
}
