//! The connection's socket in the form that h2 wants.
//!
//! Reads take small requests through a buffer on the stack (the runtime wants initialised memory)
//! and go straight into h2's memory as soon as more is there than fits. Both directions are
//! followed frame by frame, for the sake of pings and other frames of which there may be too many.
//! Writes note since when the peer takes nothing, so that a peer that never does can be shown the
//! door. Frames of large messages wait in a queue for the end of the connection's turn, and leave
//! together. With TLS in between all of this is said of the plain bytes, and nothing is queued.

mod outgoing;
mod payload;

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use conch_engine::clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::floods::FloodLimits;
use super::frames::{FrameObserver, PREFACE_BYTES, enhance_your_calm};
use super::pings::PingStrikes;
use crate::options::GrpcConnections;
use crate::shard::ShardStream;
use crate::tls::TlsSession;

use outgoing::OutgoingQueue;
pub(in crate::grpc) use payload::Payload;
use payload::take_noted;

/// Some thirty small requests.
const STACK_BYTES: usize = 8 << 10;

/// What the connection task knows of its socket, which h2 owns.
#[derive(Debug, Default)]
pub(in crate::grpc) struct TransportState {
    /// When the peer's last bytes came; monotonic.
    pub(in crate::grpc) received_ns: Cell<u64>,
    /// Since when the socket takes no more bytes; 0 if it does.
    pub(in crate::grpc) blocked_since_ns: Cell<u64>,
    /// Since when a header block has been coming; 0 for none.
    pub(in crate::grpc) block_since_ns: Cell<u64>,
    /// Whether a call is open; kept by the connection, and set here by a head that may open one.
    pub(in crate::grpc) has_calls: Cell<bool>,
}

impl TransportState {
    /// Notes since when the socket takes nothing.
    fn note_send<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &outcome {
            Poll::Ready(_) => self.blocked_since_ns.set(0),
            Poll::Pending if self.blocked_since_ns.get() == 0 => {
                self.blocked_since_ns.set(clock::monotonic_ns());
            }
            Poll::Pending => {}
        }
        outcome
    }
}

/// h2's handle of the socket.
pub(in crate::grpc) struct Transport {
    wire: Rc<RefCell<Wire>>,
}

/// The socket and what is known of its bytes, for the transport, which h2 owns, and for the
/// connection.
pub(in crate::grpc) struct Wire {
    stream: ShardStream,
    session: Option<Box<TlsSession>>,
    transport_state: Rc<TransportState>,
    /// The last read filled all its room, so more is probably there.
    expects_more: bool,
    incoming: FrameObserver,
    outgoing: FrameObserver,
    queue: OutgoingQueue,
    strikes: PingStrikes,
    floods: FloodLimits,
    /// The highest that the peer has opened, or tried to.
    last_stream: u32,
}

impl Transport {
    pub(in crate::grpc) fn new(
        stream: ShardStream,
        session: Option<Box<TlsSession>>,
        options: &GrpcConnections,
    ) -> (Transport, Rc<TransportState>) {
        let transport_state = Rc::new(TransportState::default());
        let now_ns = clock::monotonic_ns();
        transport_state.received_ns.set(now_ns);
        let wire = Wire {
            stream,
            session,
            transport_state: Rc::clone(&transport_state),
            expects_more: false,
            incoming: FrameObserver::new(PREFACE_BYTES),
            outgoing: FrameObserver::new(0),
            queue: OutgoingQueue::default(),
            strikes: PingStrikes::new(options),
            floods: FloodLimits::new(now_ns),
            last_stream: 0,
        };
        let wire = Rc::new(RefCell::new(wire));
        (Transport { wire }, transport_state)
    }

    pub(in crate::grpc) fn wire(&self) -> Rc<RefCell<Wire>> {
        Rc::clone(&self.wire)
    }
}

impl Wire {
    /// Sends what h2 has written in this turn and the socket has not been given yet.
    ///
    /// # Errors
    /// Those of the socket; the connection is over.
    pub(in crate::grpc) fn poll_send_queued(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.queue.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let (stream, transport_state) = (&mut self.stream, &self.transport_state);
        self.queue.poll_send(|pieces| {
            let outcome = stream.poll_send_vectored(context, pieces);
            transport_state.note_send(outcome)
        })
    }

    /// The way of [`AsyncWrite::poll_write_vectored`] without TLS.
    fn poll_write_plain(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
        noted: Option<&Bytes>,
    ) -> Poll<io::Result<usize>> {
        if self.queue.is_full() {
            ready!(self.poll_send_queued(context))?;
        }
        if self.queue.wants(pieces, noted) {
            let kept = self.queue.keep(pieces, noted);
            if kept > 0 {
                self.note_sent(pieces, kept);
                return Poll::Ready(Ok(kept));
            }
            // There is no memory to keep anything.
            ready!(self.poll_send_queued(context))?;
        }
        let outcome = self.stream.poll_send_vectored(context, pieces);
        if let Poll::Ready(Ok(count)) = outcome {
            self.note_sent(pieces, count);
        }
        self.transport_state.note_send(outcome)
    }

    /// The way of [`AsyncRead::poll_read`] without TLS.
    fn poll_read_plain(
        &mut self,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.expects_more) {
            let room = target.remaining();
            match conch_net::receive(self.stream.socket(), target) {
                Ok(received) => {
                    self.expects_more = received == room && room > 0;
                    let filled = target.filled();
                    let fresh = filled.get(filled.len() - received..).unwrap_or(&[]);
                    return Poll::Ready(self.note_received(fresh));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let mut stack = [0; STACK_BYTES];
        let room = target.remaining().min(STACK_BYTES);
        let place = stack.get_mut(..room).unwrap_or_default();
        let received = ready!(self.stream.poll_receive(context, place))?;
        let fresh = place.get(..received).unwrap_or_default();
        target.put_slice(fresh);
        self.expects_more = received == room && room > 0;
        Poll::Ready(self.note_received(fresh))
    }

    /// Looks at bytes that came.
    ///
    /// # Errors
    /// The peer sends too many of some frames: it has been told, and the connection is to end.
    fn note_received(&mut self, bytes: &[u8]) -> io::Result<()> {
        let now_ns = clock::monotonic_ns();
        self.transport_state.received_ns.set(now_ns);
        let (strikes, floods, transport_state, last_stream) = (
            &mut self.strikes,
            &mut self.floods,
            &self.transport_state,
            &mut self.last_stream,
        );
        let mut excess = None;
        self.incoming.follow(bytes, |frame| {
            if let Some(stream) = frame.opens() {
                *last_stream = stream.max(*last_stream);
                transport_state.has_calls.set(true);
                return;
            }
            if frame.is_ping() && strikes.note_ping(now_ns, transport_state.has_calls.get()) {
                excess = excess.or(Some("too_many_pings"));
            }
            excess = excess.or(floods.note_received(frame, now_ns));
        });
        let block_since_ns = match self.incoming.is_in_block() {
            false => 0,
            true if transport_state.block_since_ns.get() == 0 => now_ns,
            true => transport_state.block_since_ns.get(),
        };
        transport_state.block_since_ns.set(block_since_ns);
        if FloodLimits::has_too_many_updates(self.incoming.table_update_count()) {
            excess = excess.or(Some("too_many_table_updates"));
        }
        match excess {
            Some(words) => Err(self.end_calmly(words)),
            None => Ok(()),
        }
    }

    /// Tells the peer to calm down, if the socket takes it: the connection ends in any case.
    fn end_calmly(&mut self, words: &'static str) -> io::Error {
        let socket = self.stream.socket();
        if !self.queue.is_empty() {
            // What the socket takes at once; then there is room for the last frame as well.
            let _ = self
                .queue
                .poll_send(|pieces| match conch_net::send_vectored(socket, pieces) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                    outcome => Poll::Ready(outcome),
                });
        }
        if self.outgoing.is_between() && self.queue.is_empty() {
            let goaway = enhance_your_calm(self.last_stream, words);
            match &mut self.session {
                Some(session) => session.send_last(socket, &goaway),
                None => {
                    let _ = conch_net::send_vectored(socket, &[IoSlice::new(&goaway)]);
                }
            }
        }
        conch_net::finish_sending(socket);
        io::Error::other(words)
    }

    /// Looks at the first `count` bytes of `pieces`, which have been sent.
    fn note_sent(&mut self, pieces: &[IoSlice<'_>], mut count: usize) {
        let (strikes, floods) = (&mut self.strikes, &mut self.floods);
        for piece in pieces {
            let own = piece.get(..count.min(piece.len())).unwrap_or(&[]);
            count -= own.len();
            self.outgoing.follow(own, |frame| {
                if frame.excuses_pings() {
                    strikes.excuse();
                }
                floods.note_sent(frame);
            });
            if count == 0 {
                break;
            }
        }
    }

    /// The way of [`AsyncWrite::poll_write_vectored`] through TLS.
    fn poll_encrypt(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Option<Poll<io::Result<usize>>> {
        let session = self.session.as_mut()?;
        let outcome = session.poll_send_vectored(&mut self.stream, context, pieces);
        let is_blocked = session.has_unsent();
        if let Poll::Ready(Ok(count)) = outcome {
            self.note_sent(pieces, count);
        }
        let outcome = self.transport_state.note_send(outcome);
        if is_blocked {
            let _ = self.transport_state.note_send::<()>(Poll::Pending);
        }
        Some(outcome)
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = &mut *self.wire.borrow_mut();
        let Some(session) = &mut wire.session else {
            return wire.poll_read_plain(context, target);
        };
        let received = ready!(session.poll_receive(&mut wire.stream, context, target))?;
        let filled = target.filled();
        let fresh = filled.get(filled.len() - received..).unwrap_or(&[]);
        Poll::Ready(wire.note_received(fresh))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(source)])
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = &mut *self.wire.borrow_mut();
        let Some(session) = &mut wire.session else {
            // What is queued leaves at the end of the connection's turn.
            return Poll::Ready(Ok(()));
        };
        let outcome = session.poll_flush(&mut wire.stream, context);
        wire.transport_state.note_send(outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = &mut *self.wire.borrow_mut();
        if let Some(session) = &mut wire.session {
            let outcome = session.poll_close(&mut wire.stream, context);
            ready!(wire.transport_state.note_send(outcome))?;
        }
        ready!(wire.poll_send_queued(context))?;
        conch_net::finish_sending(wire.stream.socket());
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let wire = &mut *self.wire.borrow_mut();
        let noted = take_noted();
        if let Some(outcome) = wire.poll_encrypt(context, pieces) {
            return outcome;
        }
        wire.poll_write_plain(context, pieces, noted.as_ref())
    }
}
