//! A client's connection on its shard.
//!
//! Reads and writes try the system call first and wait for readiness only when it would block.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Context, Poll};

use super::runtime::Socket;

/// A connected TCP socket on the shard that polls it.
pub struct ShardStream {
    socket: Socket,
}

impl ShardStream {
    /// Takes a socket onto the current shard.
    pub(crate) fn adopt(socket: OwnedFd) -> ShardStream {
        // Without it small responses wait for the peer's acknowledgement. A socket that is gone
        // already says so at the first read.
        let _ = conch_net::set_nodelay(socket.as_raw_fd());
        ShardStream {
            socket: Socket::adopt(socket),
        }
    }

    pub(crate) fn socket(&self) -> RawFd {
        self.socket.descriptor()
    }

    /// Receives into `target`; 0 is the end of the stream.
    pub fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        target: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_receive(context, target)
    }

    /// Receives into `pieces`, one after the other; 0 is the end of the stream.
    pub fn poll_receive_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_receive_vectored(context, pieces)
    }

    /// Receives into `target` what has arrived; none if nothing has.
    pub fn receive_now(&mut self, target: &mut [u8]) -> Option<io::Result<usize>> {
        let mut target = target;
        match conch_net::receive(self.socket(), &mut target) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            outcome => Some(outcome),
        }
    }

    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_send(context, source)
    }

    /// Sends some bytes of `pieces`, which hold at least one byte.
    pub fn poll_send_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_send_vectored(context, pieces)
    }
}
