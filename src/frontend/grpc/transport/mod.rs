//! The connection's socket, and the frames that go through it.
//!
//! What the socket has received goes to the connection's state ([`Http2Connection`]) by way of a
//! buffer of the shard; parts of large tensors go to their blocks. Frames wait in a queue for the
//! end of the connection's turn, and leave together. With TLS in between nothing is received into
//! blocks.

mod buffer;
mod call;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use conch_engine::clock;
use conch_http2::{
    AcceptedRequest, BodyReader, Connection, ConnectionError, PingPolicy, ReceiveError,
};
use tokio::io::ReadBuf;

use super::infer::{MessageReader, ReadFault};
use crate::options::GrpcConnections;
use crate::shard::ShardStream;
use crate::tls::TlsSession;

use buffer::with_buffer;
pub(in crate::grpc) use call::{CallBody, DirectFailure, Responder, sides};

/// The state of a connection, for its task and its calls.
pub(in crate::grpc) type Http2Connection = Connection<MessageReader>;

/// Received in one turn of the connection, before other tasks of the shard get theirs.
const TURN_BYTES_MAX: usize = 1 << 20;
/// Some sixty small requests.
const RECEIVED_BYTES: usize = 16 << 10;

/// What a turn of receiving came to.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::grpc) enum TurnEnd {
    /// The client has closed its side, or the socket has failed.
    Closed,
    /// The client broke a rule, and has been told.
    Refused,
}

pub(in crate::grpc) struct GrpcSocket {
    stream: ShardStream,
    session: Option<Box<TlsSession>>,
    http2: Rc<RefCell<Http2Connection>>,
    /// Since when the socket takes no more bytes; 0 if it does.
    blocked_since_ns: u64,
    /// The last receive filled all its room, so more is probably there.
    expects_more: bool,
}

impl GrpcSocket {
    pub(in crate::grpc) fn new(
        stream: ShardStream,
        session: Option<Box<TlsSession>>,
        options: &GrpcConnections,
    ) -> GrpcSocket {
        let pings = PingPolicy {
            interval_min: options.ping_interval_min,
            strikes_max: options.ping_strikes_max,
            are_welcome_without_calls: options.pings_without_calls,
        };
        GrpcSocket {
            stream,
            session,
            http2: Rc::new(RefCell::new(Connection::new(pings, clock::monotonic_ns()))),
            blocked_since_ns: 0,
            expects_more: false,
        }
    }

    pub(in crate::grpc) fn http2(&self) -> &Rc<RefCell<Http2Connection>> {
        &self.http2
    }

    /// Since when the socket takes no more bytes; 0 if it does.
    pub(in crate::grpc) fn blocked_since_ns(&self) -> u64 {
        self.blocked_since_ns
    }

    /// Receives what is there; `accept` gets the requests that it begins. Ready when nothing more
    /// can come.
    pub(in crate::grpc) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        mut accept: impl FnMut(AcceptedRequest),
    ) -> Poll<TurnEnd> {
        let mut turn_bytes = 0;
        loop {
            let (has_large_bodies, is_full) = {
                let http2 = self.http2.borrow();
                (http2.has_large_bodies(), http2.is_queue_full())
            };
            if is_full {
                // Who sends what is queued comes back here.
                return Poll::Pending;
            }
            if has_large_bodies || turn_bytes >= TURN_BYTES_MAX {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(self.poll_receive_once(context)) {
                Ok(0) => return Poll::Ready(TurnEnd::Closed),
                Ok(received) => turn_bytes += received,
                Err(ReceiveError::Io(_)) => return Poll::Ready(TurnEnd::Closed),
                Err(ReceiveError::Connection(error)) => {
                    self.refuse(error);
                    return Poll::Ready(TurnEnd::Refused);
                }
            }
            loop {
                let accepted = self.http2.borrow_mut().next_accepted();
                match accepted {
                    Some(accepted) => accept(accepted),
                    None => break,
                }
            }
        }
    }

    fn poll_receive_once(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, ReceiveError>> {
        let http2 = &mut *self.http2.borrow_mut();
        let stream = &mut self.stream;
        if self.session.is_none() {
            let direct = http2.poll_receive_direct(clock::monotonic_ns, |pieces| match pieces {
                [piece] => stream.poll_receive(context, piece),
                pieces => stream.poll_receive_vectored(context, pieces),
            });
            if let Some(outcome) = direct {
                return outcome;
            }
        }
        with_buffer(|buffer| {
            let room = match self.expects_more {
                true => buffer.len(),
                false => buffer.len().min(RECEIVED_BYTES),
            };
            let place = buffer.get_mut(..room).unwrap_or_default();
            let received = match &mut self.session {
                None => ready!(stream.poll_receive(context, place))?,
                Some(session) => {
                    let mut target = ReadBuf::new(place);
                    ready!(session.poll_receive(stream, context, &mut target))?
                }
            };
            self.expects_more = received == room;
            let came = place.get(..received).unwrap_or_default();
            if received > 0 {
                http2.receive(came, clock::monotonic_ns())?;
            }
            Poll::Ready(Ok(received))
        })
    }

    /// Sends what is queued. Ready when the socket has all of it.
    ///
    /// # Errors
    /// Those of the socket; the connection is over.
    pub(in crate::grpc) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let http2 = &mut *self.http2.borrow_mut();
        let (stream, session) = (&mut self.stream, &mut self.session);
        let sent = http2.poll_send(|pieces| match session {
            None => stream.poll_send_vectored(context, pieces),
            Some(session) => session.poll_send_vectored(stream, context, pieces),
        });
        let outcome = match (sent, session) {
            (Poll::Ready(Ok(())), Some(session)) => session.poll_flush(stream, context),
            (sent, _) => sent,
        };
        match outcome {
            Poll::Ready(_) => self.blocked_since_ns = 0,
            Poll::Pending if self.blocked_since_ns == 0 => {
                self.blocked_since_ns = clock::monotonic_ns();
            }
            Poll::Pending => {}
        }
        outcome
    }

    /// Sends what is queued, and that nothing more will come.
    pub(in crate::grpc) fn poll_close(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        if let Some(session) = &mut self.session {
            ready!(session.poll_close(&mut self.stream, context))?;
        }
        conch_net::finish_sending(self.stream.socket());
        Poll::Ready(Ok(()))
    }

    /// Tells the client why the connection ends, if the socket takes it.
    pub(in crate::grpc) fn refuse(&mut self, error: ConnectionError) {
        let http2 = &mut *self.http2.borrow_mut();
        let (socket, session) = (self.stream.socket(), &mut self.session);
        http2.end(error);
        let _ = http2.poll_send(|pieces| {
            let outcome = match session {
                Some(session) => session.encrypt(pieces),
                None => conch_net::send_vectored(socket, pieces),
            };
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                outcome => Poll::Ready(outcome),
            }
        });
        if let Some(session) = session {
            session.send_last(socket, &[]);
        }
        conch_net::finish_sending(socket);
    }
}

impl BodyReader for MessageReader {
    type Error = ReadFault;

    fn left(&self) -> usize {
        MessageReader::left(self)
    }

    fn direct_left(&self) -> usize {
        self.tensor_left()
    }

    fn room(&mut self, bytes: usize) -> Result<&mut [u8], ReadFault> {
        MessageReader::room(self, bytes)
    }

    fn spare(&mut self) -> &[u8] {
        MessageReader::spare(self)
    }

    fn advance(&mut self, count: usize) -> Result<(), ReadFault> {
        MessageReader::advance(self, count)
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), ReadFault> {
        MessageReader::feed(self, bytes)
    }

    fn trim(&mut self) {
        self.trim_charge();
    }
}
