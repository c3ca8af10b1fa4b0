//! A glommio stream as the tokio traits that h2 asks for. Everything stays on one executor.

use futures_util::io::{AsyncRead as _, AsyncWrite as _};
use glommio::net::TcpStream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// At most this much is cleared and read in one call, so that a read of a few bytes into a large
/// buffer stays cheap.
const READ_BYTES_MAX: usize = 64 << 10;
/// Slices that together are no longer than this are joined and sent by one call; longer ones are
/// sent one by one.
const JOIN_BYTES_MAX: usize = 64 << 10;

/// One connection, readable and writable by h2.
pub struct Adapter {
    stream: TcpStream,
    joined: Vec<u8>,
}

impl Adapter {
    /// Wraps a connected stream.
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            joined: Vec::new(),
        }
    }
}

impl AsyncRead for Adapter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.remaining().min(READ_BYTES_MAX);
        let target = buffer.initialize_unfilled_to(length);
        let count = ready!(Pin::new(&mut self.stream).poll_read(context, target))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Adapter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        let Some(first) = filled.next() else {
            return Poll::Ready(Ok(0));
        };
        if first.len() == total || total > JOIN_BYTES_MAX {
            return Pin::new(&mut self.stream).poll_write(context, first);
        }
        let Self { stream, joined } = &mut *self;
        joined.clear();
        for slice in slices {
            joined.extend_from_slice(slice);
        }
        Pin::new(stream).poll_write(context, joined)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}
