//! One connection's records, both ways.
//!
//! What is received is decrypted in memory of the thread, record by record, and what has no room
//! yet waits in memory of its own. What is sent is encrypted [`PLAIN_BYTES_MAX`] at a time, and
//! more only once the socket has taken all of it. Between records a connection has no buffer: at
//! rest it holds its keys and rustls' state.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::task::{Context, Poll, ready};

use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};
use tokio::io::ReadBuf;

use super::buffers::{ByteQueue, PLAIN_BYTES_MAX, RecordBuffers, next_record};
use super::names;
use crate::shard::ShardStream;

/// Received at a stretch without a byte of plain text. One record has up to 18 KB; more than two
/// are records of nothing, without end.
const FRUITLESS_BYTES_MAX: usize = 48 << 10;
/// Of messages of the handshake that are not complete; the longest has 64 KB.
const HANDSHAKE_BYTES_MAX: usize = 96 << 10;
/// A record with an alert, and a change of keys in front of it.
const ALERT_BYTES_MAX: usize = 256;
/// Received beyond the room for plain text: a small request is there at once.
const AHEAD_BYTES: usize = 4 << 10;

pub(crate) struct TlsSession {
    connection: UnbufferedServerConnection,
    /// The beginning of a record, or of a message of the handshake.
    incoming: ByteQueue,
    /// Decrypted bytes for which there was no room.
    plain: ByteQueue,
    /// Encrypted bytes that the socket has not taken.
    outgoing: ByteQueue,
    /// The first byte that came.
    first: Option<u8>,
    /// The peer has said that nothing more will come.
    has_close_notify: bool,
    /// The peer broke the rules, or there was no memory: rustls is not asked any more, as what it
    /// knows of bytes that wait may be gone.
    is_broken: bool,
    /// Plain bytes that are encrypted, and not reported as sent yet.
    unreported_bytes: usize,
}

impl TlsSession {
    pub(super) fn new(connection: UnbufferedServerConnection) -> Box<TlsSession> {
        Box::new(TlsSession {
            connection,
            incoming: ByteQueue::default(),
            plain: ByteQueue::default(),
            outgoing: ByteQueue::default(),
            first: None,
            has_close_notify: false,
            is_broken: false,
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
        !self.outgoing.is_empty()
    }

    /// Receives some encrypted bytes of the handshake; 0 is the end of the stream.
    pub(super) fn poll_fill(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let received = RecordBuffers::with(|wire, _| {
            let received = stream.poll_receive(context, wire);
            let Poll::Ready(Ok(count)) = received else {
                return Ok(received);
            };
            let fresh = wire.get(..count).unwrap_or_default();
            self.first = self.first.or(fresh.first().copied());
            self.incoming.push(fresh)?;
            if self.incoming.get().len() > HANDSHAKE_BYTES_MAX {
                return Err(io::Error::other("the handshake is too long"));
            }
            Ok(received)
        });
        received.unwrap_or_else(|error| Poll::Ready(Err(error)))
    }

    /// Works on what was received and waits.
    ///
    /// # Errors
    /// The peer broke the rules or was not accepted, and an alert is ready to be sent; or there is
    /// no memory.
    pub(super) fn process(&mut self) -> io::Result<()> {
        let mut waiting = std::mem::take(&mut self.incoming);
        let used = self.decrypt(waiting.get_mut(), None)?;
        waiting.take(used);
        self.incoming = waiting;
        Ok(())
    }

    /// Works on the records in `wire`, whose beginning is what waited: what they bring goes to
    /// `target`, and what has no room there to what waits. Returns how many bytes of `wire` are
    /// done with; the others are to be there at the next call.
    ///
    /// # Errors
    /// As [`TlsSession::process`].
    fn decrypt(&mut self, wire: &mut [u8], target: Option<&mut ReadBuf<'_>>) -> io::Result<usize> {
        if self.is_broken {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let outcome = self.decrypt_records(wire, target);
        self.is_broken = outcome.is_err();
        outcome
    }

    fn decrypt_records(
        &mut self,
        wire: &mut [u8],
        mut target: Option<&mut ReadBuf<'_>>,
    ) -> io::Result<usize> {
        let mut used = 0;
        loop {
            let rest = wire.get_mut(used..).unwrap_or_default();
            let UnbufferedStatus { mut discard, state } = self.connection.process_tls_records(rest);
            match state {
                Ok(ConnectionState::ReadTraffic(mut records)) => {
                    while let Some(record) = records.next_record() {
                        let record = record.map_err(invalid)?;
                        discard += record.discard;
                        let mut payload = record.payload;
                        if let Some(target) = &mut target
                            && self.plain.is_empty()
                        {
                            let count = payload.len().min(target.remaining());
                            let (own, more) = payload.split_at(count);
                            target.put_slice(own);
                            payload = more;
                        }
                        self.plain.push(payload)?;
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut message)) => {
                    encode(&mut message, &mut self.outgoing)?;
                }
                // It waits for the socket, in its order.
                Ok(ConnectionState::TransmitTlsData(message)) => message.done(),
                Ok(ConnectionState::PeerClosed) => self.has_close_notify = true,
                Ok(
                    ConnectionState::BlockedHandshake
                    | ConnectionState::WriteTraffic(_)
                    | ConnectionState::Closed,
                ) => return Ok(used + discard),
                // Data before the end of the handshake is not asked for, so it does not come.
                Ok(_) => return Err(io::Error::other("a state of TLS that is not used")),
                Err(cause) => {
                    self.take_alert(wire.get_mut(used + discard..).unwrap_or_default());
                    return Err(invalid(cause));
                }
            }
            used += discard;
        }
    }

    /// Has the alert that an error left wait for the socket; `wire` is what the error left.
    fn take_alert(&mut self, wire: &mut [u8]) {
        // Asked for more than that, rustls would work on bytes again, and panic.
        while self.connection.wants_write()
            && let Ok(ConnectionState::EncodeTlsData(mut message)) =
                self.connection.process_tls_records(wire).state
            && encode(&mut message, &mut self.outgoing).is_ok()
        {}
    }

    /// Receives plain bytes into `target`; 0 is the end of the stream.
    pub(crate) fn poll_receive(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = target.filled().len();
        let mut fruitless_bytes = 0;
        loop {
            let plain = self.plain.get();
            let count = plain.len().min(target.remaining());
            target.put_slice(plain.get(..count).unwrap_or_default());
            self.plain.take(count);
            let received = target.filled().len() - before;
            if received > 0 || self.has_close_notify || target.remaining() == 0 {
                return Poll::Ready(Ok(received));
            }
            if fruitless_bytes > FRUITLESS_BYTES_MAX {
                return Poll::Ready(Err(io::Error::other("too many records without data")));
            }
            let outcome =
                RecordBuffers::with(|wire, _| Ok(self.poll_records(wire, stream, context, target)));
            let outcome = outcome.unwrap_or_else(|error| Poll::Ready(Err(error)));
            // An alert, or the answer to a change of keys; what the socket does not take goes with
            // the next bytes.
            if self.has_unsent()
                && let Poll::Ready(Err(error)) = self.poll_flush(stream, context)
            {
                return Poll::Ready(Err(error));
            }
            match ready!(outcome)? {
                // A request, of HTTP/1 as of HTTP/2, says by itself whether anything is missing,
                // and many a client leaves without a word.
                0 => return Poll::Ready(Ok(0)),
                count => fruitless_bytes += count,
            }
        }
    }

    /// Receives encrypted bytes, behind those that wait, into `wire`, and works on them. Returns
    /// how many came.
    fn poll_records(
        &mut self,
        wire: &mut [u8],
        stream: &mut ShardStream,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let waiting = self.incoming.get().len();
        // Not more than there is room for, so that little is left to wait; but all of a record.
        let wanted = waiting + target.remaining() + AHEAD_BYTES;
        let end = wanted
            .max(record_bytes(self.incoming.get()))
            .min(wire.len());
        let room = wire.get_mut(waiting..end).unwrap_or_default();
        let count = ready!(stream.poll_receive(context, room))?;
        let Some(wire) = wire.get_mut(..waiting + count).filter(|_| count > 0) else {
            return Poll::Ready(Ok(0));
        };
        if let Some((own, _)) = wire.split_at_mut_checked(waiting) {
            own.copy_from_slice(self.incoming.get());
        }
        self.incoming.take(waiting);
        let used = self.decrypt(wire, Some(target))?;
        let kept = self.incoming.push(wire.get(used..).unwrap_or_default());
        self.is_broken |= kept.is_err();
        Poll::Ready(kept.map(|()| count))
    }

    /// Encrypts some bytes of `pieces` into `wire`. Returns how many, and how many they became.
    fn encrypt_into(
        &mut self,
        pieces: &[IoSlice<'_>],
        wire: &mut [u8],
        gathered: &mut Vec<u8>,
    ) -> io::Result<(usize, usize)> {
        // What rustls has to say goes first.
        self.process()?;
        let (mut taken, mut written) = (0, 0);
        while taken < PLAIN_BYTES_MAX {
            let record = next_record(pieces, taken, gathered);
            if record.is_empty() {
                break;
            }
            let rest = wire.get_mut(written..).unwrap_or_default();
            let Some(mut traffic) = self.traffic() else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            match traffic.encrypt(record, rest) {
                Ok(count) => written += count,
                // A change of keys took the room of a record.
                Err(EncryptError::InsufficientSize(_)) if taken > 0 => break,
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
            taken += record.len();
        }
        Ok((taken, written))
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
        let outcome = RecordBuffers::with(|wire, gathered| {
            let (taken, written) = self.encrypt_into(pieces, wire, gathered)?;
            let mut rest = wire.get(..written).unwrap_or_default();
            // Behind what rustls had to say meanwhile, if anything.
            while !rest.is_empty() && self.outgoing.is_empty() {
                match stream.poll_send(context, rest) {
                    Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(sent) => rest = rest.get(sent?..).unwrap_or_default(),
                    Poll::Pending => break,
                }
            }
            self.outgoing.push(rest)?;
            Ok(taken)
        });
        Poll::Ready(outcome)
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
            self.unreported_bytes = ready!(self.poll_send_vectored(stream, context, pieces))?;
        }
        ready!(self.poll_flush(stream, context))?;
        Poll::Ready(Ok(std::mem::take(&mut self.unreported_bytes)))
    }

    /// Encrypts some bytes of `pieces`, to be sent by [`TlsSession::poll_flush`], and returns how
    /// many.
    pub(crate) fn encrypt(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        RecordBuffers::with(|wire, gathered| {
            let (taken, written) = self.encrypt_into(pieces, wire, gathered)?;
            self.outgoing
                .push(wire.get(..written).unwrap_or_default())?;
            Ok(taken)
        })
    }

    /// Sends what is encrypted. Ready when the socket has all of it.
    pub(crate) fn poll_flush(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            let sent = ready!(stream.poll_send(context, self.outgoing.get()))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.take(sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Says that nothing more will come.
    pub(crate) fn poll_close(
        &mut self,
        stream: &mut ShardStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.queue_close_notify();
        self.poll_flush(stream, context)
    }

    /// Has the alert that ends our side wait for the socket; once.
    fn queue_close_notify(&mut self) {
        let mut alert = [0; ALERT_BYTES_MAX];
        if self.process().is_ok()
            && let Some(mut traffic) = self.traffic()
            && let Ok(count) = traffic.queue_close_notify(&mut alert)
        {
            let _ = self.outgoing.push(alert.get(..count).unwrap_or_default());
        }
    }

    /// What encrypts; none before the end of the handshake. All that waits has been worked on.
    fn traffic(&mut self) -> Option<WriteTraffic<'_, ServerConnectionData>> {
        match self
            .connection
            .process_tls_records(self.incoming.get_mut())
            .state
        {
            Ok(ConnectionState::WriteTraffic(traffic)) => Some(traffic),
            _ => None,
        }
    }

    /// Sends `bytes` and the end, as far as the socket takes them right now.
    pub(crate) fn send_last(&mut self, socket: RawFd, bytes: &[u8]) {
        let taken = self.encrypt(&[IoSlice::new(bytes)]);
        self.queue_close_notify();
        while taken.is_ok() && !self.outgoing.is_empty() {
            let waiting = [IoSlice::new(self.outgoing.get())];
            match conch_net::send_vectored(socket, &waiting) {
                Ok(sent) if sent > 0 => self.outgoing.take(sent),
                _ => break,
            }
        }
    }
}

fn encode(
    message: &mut EncodeTlsData<'_, ServerConnectionData>,
    outgoing: &mut ByteQueue,
) -> io::Result<()> {
    let mut room = Vec::new();
    if let Err(EncodeError::InsufficientSize(error)) = message.encode(&mut room) {
        let reserved = room.try_reserve_exact(error.required_size);
        reserved.map_err(|_| io::ErrorKind::OutOfMemory)?;
        room.resize(error.required_size, 0);
        message
            .encode(&mut room)
            .map_err(|error| io::Error::other(error.to_string()))?;
    }
    outgoing.push(&room)
}

/// The length of the record whose beginning is `bytes`, if that says it.
fn record_bytes(bytes: &[u8]) -> usize {
    match bytes {
        [_, _, _, high, low, ..] => 5 + usize::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    }
}

fn invalid(cause: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}
