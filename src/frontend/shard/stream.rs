//! A client's connection on its shard.
//!
//! Reads and writes try the system call first and wait for readiness through the ring only when it
//! would block. Vectored writes go round the runtime, which has none.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;

/// A connected TCP socket on the shard that polls it.
pub struct ShardStream {
    inner: TcpStream,
    socket: RawFd,
}

impl ShardStream {
    /// Takes a socket onto the current shard.
    pub(crate) fn adopt(socket: OwnedFd) -> ShardStream {
        let raw = socket.as_raw_fd();
        // Without it small responses wait for the peer's acknowledgement. A socket that is gone
        // already says so at the first read.
        let _ = conch_net::set_nodelay(raw);
        ShardStream {
            inner: conch_net::adopt(socket),
            socket: raw,
        }
    }

    pub(crate) fn socket(&self) -> RawFd {
        self.socket
    }

    /// Receives into `target`; 0 is the end of the stream.
    pub fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        target: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_read(context, target)
    }

    /// Receives into `target` what has arrived; none if nothing has.
    pub fn receive_now(&mut self, target: &mut [u8]) -> Option<io::Result<usize>> {
        let mut target = target;
        match conch_net::receive(self.socket, &mut target) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            outcome => Some(outcome),
        }
    }

    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, source)
    }

    /// Sends some bytes of `pieces`, which hold at least one byte.
    pub fn poll_send_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match conch_net::send_vectored(self.socket, pieces) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Tries once more and, if it still would block, waits for room.
                let first = pieces
                    .iter()
                    .find(|piece| !piece.is_empty())
                    .map_or(&[][..], |piece| piece);
                self.poll_send(context, first)
            }
            result => Poll::Ready(result),
        }
    }
}
