//! One connection's records, both ways.
//!
//! What is received is decrypted record by record, into memory that holds one record and is small
//! between them. What is sent is encrypted [`SEND_BYTES_MAX`] at a time, and more only once the
//! socket has taken all of it.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::os::fd::RawFd;
use std::task::{Context, Poll, ready};

use rustls::ServerConnection;
use tokio::io::ReadBuf;

use super::names;
use crate::shard::ShardStream;

/// Two records.
const SEND_BYTES_MAX: usize = 32 << 10;
/// Received at a stretch without a byte of plain text. One record has up to 18 KB; more than two
/// are records of nothing, without end.
const FRUITLESS_BYTES_MAX: usize = 48 << 10;

pub(crate) struct TlsSession {
    connection: ServerConnection,
    /// The first byte that came.
    first: Option<u8>,
    /// Plain bytes that are encrypted, and not reported as sent yet.
    unreported_bytes: usize,
}

impl TlsSession {
    pub(super) fn new(mut connection: ServerConnection) -> Box<TlsSession> {
        connection.set_buffer_limit(Some(SEND_BYTES_MAX));
        Box::new(TlsSession {
            connection,
            first: None,
            unreported_bytes: 0,
        })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// What both sides agreed to speak.
    pub(super) fn protocol(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// The names in the certificate that the peer has shown and that was verified; none without.
    pub(crate) fn peer_names(&self) -> Box<[Box<str>]> {
        let chain = self.connection.peer_certificates();
        let own = chain.and_then(<[_]>::first);
        own.map(names::of_certificate).unwrap_or_default()
    }

    /// The first byte that the peer sent.
    pub(super) fn first_byte(&self) -> Option<u8> {
        self.first
    }

    /// Whether encrypted bytes wait for the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Receives some encrypted bytes; 0 is the end of the stream.
    pub(super) fn poll_fill(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut wire = SocketIo {
            stream,
            context,
            first: &mut self.first,
        };
        polled(self.connection.read_tls(&mut wire))
    }

    /// Works on what was received.
    ///
    /// # Errors
    /// The peer broke the rules or was not accepted; an alert is ready to be sent.
    pub(super) fn process(&mut self) -> io::Result<()> {
        match self.connection.process_new_packets() {
            Ok(_) => Ok(()),
            Err(cause) => Err(io::Error::new(io::ErrorKind::InvalidData, cause)),
        }
    }

    /// Receives plain bytes into `target`; 0 is the end of the stream.
    pub(crate) fn poll_receive(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut fruitless_bytes = 0;
        loop {
            match self.take(target) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
            if fruitless_bytes > FRUITLESS_BYTES_MAX {
                return Poll::Ready(Err(io::Error::other("too many records without data")));
            }
            fruitless_bytes += ready!(self.poll_fill(stream, context))?;
            let outcome = self.process();
            // An alert, or the answer to a change of keys; what the socket does not take goes with
            // the next bytes.
            if self.has_unsent()
                && let Poll::Ready(Err(error)) = self.poll_flush(stream, context)
            {
                return Poll::Ready(Err(error));
            }
            outcome?;
        }
    }

    /// Moves plain bytes that are there into `target`.
    fn take(&mut self, target: &mut ReadBuf<'_>) -> io::Result<usize> {
        let mut reader = self.connection.reader();
        let plain = match reader.fill_buf() {
            Ok(plain) => plain,
            // A request, of HTTP/1 as of HTTP/2, says by itself whether anything is missing, and
            // many a client leaves without a word.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
            Err(error) => return Err(error),
        };
        let count = plain.len().min(target.remaining());
        target.put_slice(plain.get(..count).unwrap_or_default());
        reader.consume(count);
        Ok(count)
    }

    /// Encrypts some bytes of `pieces`, and sends what the socket takes. What it does not take is
    /// sent by [`TlsSession::poll_flush`].
    pub(crate) fn poll_send_vectored(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(stream, context))?;
        let count = self.encrypt(pieces)?;
        if let Poll::Ready(Err(error)) = self.poll_flush(stream, context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(count))
    }

    /// The same, ready once the socket has what was encrypted; until then it is to be called again
    /// with the same bytes.
    pub(super) fn poll_send_through(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.unreported_bytes == 0 {
            ready!(self.poll_flush(stream, context))?;
            self.unreported_bytes = self.encrypt(pieces)?;
        }
        ready!(self.poll_flush(stream, context))?;
        Poll::Ready(Ok(std::mem::take(&mut self.unreported_bytes)))
    }

    /// Encrypts some bytes of `pieces` and returns how many; 0 if too much waits for the socket.
    pub(crate) fn encrypt(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection.writer().write_vectored(pieces)
    }

    /// Sends what is encrypted. Ready when the socket has all of it.
    pub(crate) fn poll_flush(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.connection.wants_write() {
            let mut wire = SocketIo {
                stream,
                context,
                first: &mut self.first,
            };
            if ready!(polled(self.connection.write_tls(&mut wire)))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Says that nothing more will come.
    pub(crate) fn poll_close(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.connection.send_close_notify();
        self.poll_flush(stream, context)
    }

    /// Sends `bytes` and the end, as far as the socket takes them right now.
    pub(crate) fn send_last(&mut self, socket: RawFd, bytes: &[u8]) {
        let mut wire = NonBlockingIo(socket);
        let taken = self.connection.writer().write(bytes);
        self.connection.send_close_notify();
        while taken.is_ok()
            && self.connection.wants_write()
            && matches!(self.connection.write_tls(&mut wire), Ok(1..))
        {}
    }
}

fn polled<T>(outcome: io::Result<T>) -> Poll<io::Result<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        outcome => Poll::Ready(outcome),
    }
}

/// The socket as rustls wants it; what would block has been noted for the task to be woken.
struct SocketIo<'a, 'b> {
    stream: &'a mut ShardStream,
    context: &'a mut Context<'b>,
    first: &'a mut Option<u8>,
}

fn unpolled<T>(outcome: Poll<io::Result<T>>) -> io::Result<T> {
    match outcome {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for SocketIo<'_, '_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = unpolled(self.stream.poll_receive(self.context, target))?;
        if self.first.is_none() && count > 0 {
            *self.first = target.first().copied();
        }
        Ok(count)
    }
}

impl Write for SocketIo<'_, '_> {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        unpolled(self.stream.poll_send(self.context, source))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        unpolled(self.stream.poll_send_vectored(self.context, pieces))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket without anyone to be woken.
struct NonBlockingIo(RawFd);

impl Write for NonBlockingIo {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        conch_net::send_vectored(self.0, &[IoSlice::new(source)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        conch_net::send_vectored(self.0, pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
