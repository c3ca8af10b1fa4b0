//! The connection's socket in the form that h2 wants.
//!
//! Reads take small requests through a buffer on the stack (the runtime wants initialised memory)
//! and go straight into h2's memory as soon as more is there than fits; the payloads of large
//! tensors go to their blocks, past h2 ([`incoming`]). Both directions are followed frame by frame,
//! for the sake of pings and other frames of which there may be too many. Writes note since when
//! the peer takes nothing, so that a peer that never does can be shown the door. Frames of large
//! messages wait in a queue for the end of the connection's turn, and leave together
//! ([`outgoing`]). With TLS in between everything goes through h2, and nothing but the
//! frame that announces the connection's end is queued.

mod direct;
mod incoming;
mod limits;
mod outgoing;
mod payload;
mod scatter;
mod sinks;
mod state;

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{FrameObserver, STREAM_MASK, goaway, window_update};
use crate::options::GrpcConnections;
use crate::shard::ShardStream;
use crate::tls::TlsSession;

pub(in crate::grpc) use direct::{DirectArrival, DirectFailure, DirectReceiver};
use incoming::{ByteSource, Incoming, ReadFailure};
use limits::FrameLimits;
use outgoing::OutgoingQueue;
pub(in crate::grpc) use payload::Payload;
use payload::take_noted;
pub(in crate::grpc) use state::TransportState;

/// Reasons of GOAWAY frames.
const NO_ERROR: u32 = 0;
const FLOW_CONTROL_ERROR: u32 = 3;
const ENHANCE_YOUR_CALM: u32 = 11;

/// h2's handle of the socket.
pub(in crate::grpc) struct Transport {
    socket: Rc<RefCell<FramedSocket>>,
}

/// The socket and what is known of its bytes, for the transport, which h2 owns, and for the
/// connection.
pub(in crate::grpc) struct FramedSocket {
    stream: ShardStream,
    session: Option<Box<TlsSession>>,
    transport_state: Rc<TransportState>,
    incoming: Rc<RefCell<Incoming>>,
    outgoing: FrameObserver,
    queue: OutgoingQueue,
    limits: FrameLimits,
}

impl Transport {
    pub(in crate::grpc) fn new(
        stream: ShardStream,
        session: Option<Box<TlsSession>>,
        options: &GrpcConnections,
    ) -> (Transport, Rc<TransportState>) {
        let transport_state = Rc::new(TransportState::default());
        let socket = FramedSocket {
            stream,
            session,
            transport_state: Rc::clone(&transport_state),
            incoming: Rc::new(RefCell::new(Incoming::new())),
            outgoing: FrameObserver::new(0),
            queue: OutgoingQueue::default(),
            limits: FrameLimits::new(&transport_state, options),
        };
        let socket = Rc::new(RefCell::new(socket));
        (Transport { socket }, transport_state)
    }

    pub(in crate::grpc) fn socket(&self) -> Rc<RefCell<FramedSocket>> {
        Rc::clone(&self.socket)
    }
}

impl FramedSocket {
    /// What receives large tensors of this connection's calls; none with TLS.
    pub(in crate::grpc) fn direct_receiver(&self) -> Option<DirectReceiver> {
        let is_plain = self.session.is_none();
        is_plain.then(|| DirectReceiver::new(Rc::clone(&self.incoming)))
    }

    /// The calls that were due have run, and the connection is about to.
    pub(in crate::grpc) fn begin_turn(&mut self) {
        self.incoming.borrow_mut().begin_turn();
    }

    /// Sends what h2 has written in this turn and the socket has not been given yet, and opens
    /// windows.
    ///
    /// # Errors
    /// Those of the socket; the connection is over.
    pub(in crate::grpc) fn poll_send_queued(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.open_windows();
        self.poll_send_queue(context)
    }

    /// Tells the peer that the connection is about to end, so that it opens no more calls on it;
    /// those that it has begun are let in. The frame leaves at the end of the turn. False while h2
    /// is in the middle of a frame or a header block, or if there is no memory: then it is to be
    /// tried again.
    pub(in crate::grpc) fn announce_end(&mut self) -> bool {
        let frame = goaway(STREAM_MASK, NO_ERROR, "");
        let is_queued = self.outgoing.has_room() && self.queue.push(&frame);
        if is_queued {
            let (outgoing, limits) = (&mut self.outgoing, &mut self.limits);
            outgoing.follow(&frame, |frame| limits.note_sent(frame));
        }
        is_queued
    }

    /// When the peer's last bytes came; monotonic.
    pub(in crate::grpc) fn received_ns(&self) -> u64 {
        self.transport_state.received_ns.get()
    }

    fn poll_send_queue(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.queue.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let (stream, transport_state) = (&mut self.stream, &self.transport_state);
        let session = &mut self.session;
        self.queue.poll_send(|pieces| {
            let outcome = match session {
                None => stream.poll_send_vectored(context, pieces),
                Some(session) => session.poll_send_vectored(stream, context, pieces),
            };
            transport_state.note_send(outcome)
        })
    }

    /// Has the peer's windows opened for bytes that h2 has not seen, unless h2 is in the middle of
    /// a frame or a header block. What there is no memory for comes with a later turn.
    fn open_windows(&mut self) {
        if !self.outgoing.has_room() {
            return;
        }
        let (queue, outgoing, limits) = (&mut self.queue, &mut self.outgoing, &mut self.limits);
        self.incoming.borrow_mut().take_credits(|stream, bytes| {
            let frame = window_update(stream, bytes);
            let is_queued = queue.push(&frame);
            if is_queued {
                outgoing.follow(&frame, |frame| limits.note_sent(frame));
            }
            is_queued
        });
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

    /// Looks at plain bytes that TLS has brought.
    ///
    /// # Errors
    /// The peer sends too many of some frames: it has been told, and the connection is to end.
    fn note_decrypted(&mut self, bytes: &[u8]) -> io::Result<()> {
        let outcome = {
            let mut incoming = self.incoming.borrow_mut();
            incoming.follow(bytes, &mut self.limits);
            self.limits.end_bytes(&incoming.frames)
        };
        outcome.map_err(|words| self.end_with(ENHANCE_YOUR_CALM, words))
    }

    /// The way of [`AsyncRead::poll_read`] without TLS.
    fn poll_read_plain(
        &mut self,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = self.incoming.borrow_mut().poll_read(
            &mut self.stream,
            &mut self.limits,
            context,
            target,
        );
        outcome.map_err(|failure| match failure {
            ReadFailure::Io(error) => error,
            ReadFailure::Excess(words) => self.end_with(ENHANCE_YOUR_CALM, words),
            ReadFailure::WindowExceeded => self.end_with(FLOW_CONTROL_ERROR, ""),
        })
    }

    /// Tells the peer why the connection ends, if the socket takes it.
    fn end_with(&mut self, reason: u32, words: &'static str) -> io::Error {
        let (socket, session) = (self.stream.socket(), &mut self.session);
        // What the socket takes at once; then there is room for the last frame as well.
        let _ = self.queue.poll_send(|pieces| {
            let outcome = match session {
                Some(session) => session.encrypt(pieces),
                None => conch_net::send_vectored(socket, pieces),
            };
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                outcome => Poll::Ready(outcome),
            }
        });
        if self.outgoing.has_room() && self.queue.is_empty() {
            let goaway = goaway(self.limits.last_stream(), reason, words);
            match &mut self.session {
                Some(session) => session.send_last(socket, &goaway),
                None => {
                    let _ = conch_net::send_vectored(socket, &[IoSlice::new(&goaway)]);
                }
            }
        }
        conch_net::finish_sending(socket);
        io::Error::other(match words {
            "" => "the window was exceeded",
            words => words,
        })
    }

    /// Looks at the first `count` bytes of `pieces`, which have been sent.
    fn note_sent(&mut self, pieces: &[IoSlice<'_>], mut count: usize) {
        let limits = &mut self.limits;
        for piece in pieces {
            let own = piece.get(..count.min(piece.len())).unwrap_or(&[]);
            count -= own.len();
            self.outgoing.follow(own, |frame| limits.note_sent(frame));
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
        if self.session.is_some() {
            match self.poll_send_queue(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
                Poll::Pending => return Some(Poll::Pending),
            }
        }
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

impl ByteSource for ShardStream {
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        pieces: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        match pieces {
            [piece] => ShardStream::poll_receive(self, context, piece),
            pieces => self.poll_receive_vectored(context, pieces),
        }
    }

    fn receive_now(&mut self, target: &mut impl BufMut) -> io::Result<usize> {
        conch_net::receive(self.socket(), target)
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = &mut *self.socket.borrow_mut();
        let Some(session) = &mut socket.session else {
            return socket.poll_read_plain(context, target);
        };
        let received = ready!(session.poll_receive(&mut socket.stream, context, target))?;
        let filled = target.filled();
        let fresh = filled.get(filled.len() - received..).unwrap_or(&[]);
        Poll::Ready(socket.note_decrypted(fresh))
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
        let socket = &mut *self.socket.borrow_mut();
        let Some(session) = &mut socket.session else {
            // What is queued leaves at the end of the connection's turn.
            return Poll::Ready(Ok(()));
        };
        let outcome = session.poll_flush(&mut socket.stream, context);
        socket.transport_state.note_send(outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = &mut *self.socket.borrow_mut();
        ready!(socket.poll_send_queued(context))?;
        if let Some(session) = &mut socket.session {
            let outcome = session.poll_close(&mut socket.stream, context);
            ready!(socket.transport_state.note_send(outcome))?;
        }
        conch_net::finish_sending(socket.stream.socket());
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
        let socket = &mut *self.socket.borrow_mut();
        let noted = take_noted();
        if let Some(outcome) = socket.poll_encrypt(context, pieces) {
            return outcome;
        }
        socket.poll_write_plain(context, pieces, noted.as_ref())
    }
}

#[cfg(test)]
mod tests;
