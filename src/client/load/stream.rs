//! A socket as the tokio traits that h2 asks for.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use conch_executor::Socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One connection, readable and writable by h2.
pub(super) struct SocketStream {
    socket: Socket,
}

impl SocketStream {
    pub(super) fn new(socket: Socket) -> SocketStream {
        SocketStream { socket }
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room_bytes = buffer.remaining().min(READ_BYTES_MAX);
        let target = buffer.initialize_unfilled_to(room_bytes);
        let count = ready!(self.socket.poll_receive(context, room_bytes, |socket| {
            let mut target = target;
            conch_net::receive(socket, &mut target)
        }))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket
            .poll_send(context, |socket| conch_net::send_vectored(socket, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// At most this much is cleared and read in one call, so that a read of a few bytes into a large
/// buffer stays cheap.
const READ_BYTES_MAX: usize = 64 << 10;
