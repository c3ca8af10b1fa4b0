//! A client's connection on its shard.
//!
//! Reads and writes try the system call first and wait for readiness through the ring only when it would block. Vectored writes go
//! round the runtime, which has none. The stream is also what h2 asks for (tokio's traits).

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_lite::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;

/// What one read through the tokio adapter takes at most.
const ADAPTER_BYTES: usize = 64 << 10;

/// A connected TCP socket on the shard that polls it.
pub struct Stream {
    inner: TcpStream,
    socket: RawFd,
    /// Where the tokio adapter reads first: its caller's memory is uninitialised, and clearing it would cost more than this copy.
    scratch: Vec<u8>,
}

impl Stream {
    /// Takes a socket onto the current shard.
    pub(crate) fn adopt(socket: OwnedFd) -> Stream {
        let raw = socket.as_raw_fd();
        // Without it small responses wait for the peer's acknowledgement. A socket that is gone already says so at the first read.
        let _ = conch_net::set_nodelay(raw);
        Stream {
            inner: conch_net::adopt(socket),
            socket: raw,
            scratch: Vec::new(),
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

    pub async fn receive(&mut self, target: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_receive(context, target)).await
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

impl tokio::io::AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.scratch.is_empty() {
            this.scratch.resize(ADAPTER_BYTES, 0);
        }
        let room = target.remaining().min(ADAPTER_BYTES);
        let scratch = &mut this.scratch[..room];
        let received = ready!(Pin::new(&mut this.inner).poll_read(context, scratch))?;
        target.put_slice(&scratch[..received]);
        Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(context, source)
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_close(context)
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
        self.get_mut().poll_send_vectored(context, pieces)
    }
}
