//! The connection's socket in the form that h2 wants.
//!
//! Reads take small requests through a buffer on the stack (the runtime wants initialised memory) and go straight into h2's
//! memory as soon as more is there than fits. Writes note since when the peer takes nothing, so that a peer that never does can be
//! shown the door.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use conch_engine::clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::shard::Stream;

/// Some thirty small requests.
const STACK_BYTES: usize = 8 << 10;

/// What the connection task knows of its socket, which h2 owns.
#[derive(Debug, Default)]
pub(super) struct Vitals {
    /// When the peer's last bytes came; monotonic.
    pub(super) received_ns: Cell<u64>,
    /// Since when the socket takes no more bytes; 0 if it does.
    pub(super) blocked_since_ns: Cell<u64>,
}

pub(super) struct Transport {
    stream: Stream,
    vitals: Rc<Vitals>,
    /// The last read filled all its room, so more is probably there.
    expects_more: bool,
}

impl Transport {
    pub(super) fn new(stream: Stream) -> (Transport, Rc<Vitals>) {
        let vitals = Rc::new(Vitals::default());
        vitals.received_ns.set(clock::monotonic_ns());
        (
            Transport {
                stream,
                vitals: Rc::clone(&vitals),
                expects_more: false,
            },
            vitals,
        )
    }

    fn note_send(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &outcome {
            Poll::Ready(_) => self.vitals.blocked_since_ns.set(0),
            Poll::Pending if self.vitals.blocked_since_ns.get() == 0 => {
                self.vitals.blocked_since_ns.set(clock::monotonic_ns());
            }
            Poll::Pending => {}
        }
        outcome
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if std::mem::take(&mut this.expects_more) {
            let room = target.remaining();
            match conch_net::receive(this.stream.socket(), target) {
                Ok(received) => {
                    this.expects_more = received == room && room > 0;
                    this.vitals.received_ns.set(clock::monotonic_ns());
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let mut stack = [0; STACK_BYTES];
        let room = target.remaining().min(STACK_BYTES);
        let place = stack.get_mut(..room).unwrap_or_default();
        let received = ready!(this.stream.poll_receive(context, place))?;
        target.put_slice(place.get(..received).unwrap_or_default());
        this.expects_more = received == room && room > 0;
        this.vitals.received_ns.set(clock::monotonic_ns());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = this.stream.poll_send(context, source);
        this.note_send(outcome)
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        conch_net::finish_sending(self.stream.socket());
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
        let this = self.get_mut();
        let outcome = this.stream.poll_send_vectored(context, pieces);
        this.note_send(outcome)
    }
}
