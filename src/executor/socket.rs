//! Sockets that tasks wait for.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Context, Poll};

use conch_net::ring::Interest;

use crate::reactor::{Reactor, WatchKey};

/// A connected socket, used by tasks of one executor.
///
/// Calls are tried first; only what would block waits, in the ring, for readiness. Each direction
/// has one waiting task.
pub struct Socket {
    receiving: Direction,
    sending: Direction,
    // Last: it is closed when no watch refers to it any more.
    descriptor: OwnedFd,
}

/// What is known of one direction.
struct Direction {
    interest: Interest,
    state: DirectionState,
}

enum DirectionState {
    /// The next call may succeed.
    Unknown,
    /// The next call would block, in all likelihood.
    Exhausted,
    Watched(WatchKey),
}

impl Socket {
    pub fn new(descriptor: OwnedFd) -> Socket {
        Socket {
            receiving: Direction::new(Interest::Readable),
            sending: Direction::new(Interest::Writable),
            descriptor,
        }
    }

    /// Calls `receive` once it does not block. It gets the descriptor, and returns how much it
    /// received of how much there was room for: if that is less, the next call waits first.
    ///
    /// # Errors
    /// Those of `receive`, and of a kernel that watches no more sockets.
    pub fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        room: usize,
        receive: impl FnOnce(RawFd) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.receiving
            .poll(context, room, self.descriptor.as_raw_fd(), receive)
    }

    /// Calls `send` once it does not block; as [`Socket::poll_receive`].
    ///
    /// # Errors
    /// As for [`Socket::poll_receive`].
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        send: impl FnOnce(RawFd) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        // Also a call that sent less than it was given is followed by another: it says when the
        // socket's buffer is full.
        self.sending
            .poll(context, 0, self.descriptor.as_raw_fd(), send)
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl Direction {
    fn new(interest: Interest) -> Direction {
        Direction {
            interest,
            state: DirectionState::Unknown,
        }
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        room: usize,
        descriptor: RawFd,
        call: impl FnOnce(RawFd) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        match self.state {
            DirectionState::Unknown => {}
            DirectionState::Exhausted => return self.watch(context, descriptor),
            DirectionState::Watched(key) => {
                let waker = context.waker();
                if !Reactor::with(|reactor| reactor.is_ready(key, waker)) {
                    return Poll::Pending;
                }
                self.state = DirectionState::Unknown;
            }
        }
        match call(descriptor) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.watch(context, descriptor)
            }
            Ok(count) => {
                if 0 < count && count < room {
                    self.state = DirectionState::Exhausted;
                }
                Poll::Ready(Ok(count))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn watch(&mut self, context: &mut Context<'_>, descriptor: RawFd) -> Poll<io::Result<usize>> {
        let (interest, waker) = (self.interest, context.waker());
        match Reactor::with(|reactor| reactor.watch(descriptor, interest, waker)) {
            Ok(key) => {
                self.state = DirectionState::Watched(key);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Direction {
    fn drop(&mut self) {
        if let DirectionState::Watched(key) = self.state {
            Reactor::try_with(|reactor| reactor.forget(key));
        }
    }
}
