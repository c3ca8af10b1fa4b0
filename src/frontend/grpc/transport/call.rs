//! A call's side of its connection: the body that comes, and the answer that goes.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use conch_http2::{BodyError, HeaderField, ReaderProgress, Reason, StreamClosed};

use super::Http2Connection;
use crate::grpc::infer::{MessageReader, ReadFault};
use crate::grpc::status::GrpcStatus;

pub(in crate::grpc) type DirectFuture<'a> =
    Pin<Box<dyn Future<Output = Result<(), DirectFailure>> + 'a>>;

/// A tensor that misses less is not worth the trouble.
const TENSOR_BYTES_MIN: usize = 32 << 10;

/// Why nothing more will come.
#[derive(Debug)]
pub(in crate::grpc) enum DirectFailure {
    Read(ReadFault),
    Timeout(GrpcStatus),
}

/// An accepted stream of a connection; released on drop.
struct StreamHandle {
    http2: Rc<RefCell<Http2Connection>>,
    stream: u32,
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        self.http2.borrow_mut().release(self.stream);
    }
}

/// The body of a call, as it arrives.
pub(in crate::grpc) struct CallBody(Rc<StreamHandle>);

/// What answers a call. If both it and the body are dropped before the answer is complete, the
/// stream is reset.
pub(in crate::grpc) struct Responder(Rc<StreamHandle>);

/// The two sides of an accepted stream.
pub(in crate::grpc) fn sides(
    http2: &Rc<RefCell<Http2Connection>>,
    stream: u32,
) -> (CallBody, Responder) {
    let handle = Rc::new(StreamHandle {
        http2: Rc::clone(http2),
        stream,
    });
    (CallBody(Rc::clone(&handle)), Responder(handle))
}

impl CallBody {
    /// The next part; none at the end. Ready with an error if the client has withdrawn the call, or
    /// is gone, or there is no memory for the part.
    pub(in crate::grpc) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let StreamHandle { http2, stream } = &*self.0;
        http2.borrow_mut().poll_body(*stream, context)
    }

    /// Whether a message in this state is to be received by [`CallBody::receive_into`].
    pub(in crate::grpc) fn is_worth_receiving_into(reader: &MessageReader) -> bool {
        reader.tensor_left() >= TENSOR_BYTES_MIN
    }

    /// Lets the connection have `reader` until its message is whole, or something comes that it
    /// cannot take, which is then the next part. `wait` is told whether bytes came since it was
    /// asked last, and says if the client is waited for no longer.
    ///
    /// # Errors
    /// As [`DirectFailure`] says.
    pub(in crate::grpc) fn receive_into<'a>(
        &'a mut self,
        reader: &'a mut Option<MessageReader>,
        wait: impl FnMut(&mut Context<'_>, bool) -> Poll<GrpcStatus> + 'a,
    ) -> DirectFuture<'a> {
        // Boxed: most calls never need it.
        Box::pin(self.receive(reader, wait))
    }

    async fn receive(
        &mut self,
        reader: &mut Option<MessageReader>,
        mut wait: impl FnMut(&mut Context<'_>, bool) -> Poll<GrpcStatus>,
    ) -> Result<(), DirectFailure> {
        let StreamHandle { http2, stream } = &*self.0;
        let guard = ReaderGuard {
            http2,
            stream: *stream,
        };
        std::future::poll_fn(|context| {
            let mut state = http2.borrow_mut();
            if reader.is_some() && !state.attach_reader(*stream, reader, context.waker()) {
                return Poll::Ready(Ok(()));
            }
            let has_progressed = match state.poll_reader(*stream, context.waker()) {
                ReaderProgress::Closed => return Poll::Ready(Ok(())),
                ReaderProgress::Open { has_progressed } => has_progressed,
            };
            drop(state);
            let timeout = wait(context, has_progressed);
            timeout.map(|status| Err(DirectFailure::Timeout(status)))
        })
        .await?;
        guard.take_back(reader)
    }
}

/// A reader in the connection's hands, if it is there; ends with this.
struct ReaderGuard<'a> {
    http2: &'a RefCell<Http2Connection>,
    stream: u32,
}

impl ReaderGuard<'_> {
    fn take_back(&self, reader: &mut Option<MessageReader>) -> Result<(), DirectFailure> {
        let Some((own, fault)) = self.http2.borrow_mut().detach_reader(self.stream) else {
            return Ok(());
        };
        *reader = Some(own);
        fault.map_or(Ok(()), |fault| Err(DirectFailure::Read(fault)))
    }
}

impl Drop for ReaderGuard<'_> {
    fn drop(&mut self) {
        let guard = self.http2.borrow_mut().detach_reader(self.stream);
        drop(guard);
    }
}

impl Responder {
    /// Sends the head of the answer.
    ///
    /// # Errors
    /// The client has withdrawn the call, or is gone; or a head has been sent.
    pub(in crate::grpc) fn send_head(
        &mut self,
        status: u16,
        fields: &[HeaderField<'_>],
        ends_stream: bool,
    ) -> Result<(), StreamClosed> {
        let StreamHandle { http2, stream } = &*self.0;
        let mut http2 = http2.borrow_mut();
        http2.send_head(*stream, status, fields, ends_stream)
    }

    /// Hands over as much of `payload` as there is room for, and takes it from `payload`.
    ///
    /// # Errors
    /// The client has withdrawn the call, or is gone.
    pub(in crate::grpc) fn poll_send(
        &mut self,
        payload: &mut Bytes,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, StreamClosed>> {
        let StreamHandle { http2, stream } = &*self.0;
        http2.borrow_mut().poll_send_body(*stream, payload, context)
    }

    /// Ends the answer.
    ///
    /// # Errors
    /// The client has withdrawn the call, or is gone.
    pub(in crate::grpc) fn send_trailers(
        &mut self,
        fields: &[HeaderField<'_>],
    ) -> Result<(), StreamClosed> {
        let StreamHandle { http2, stream } = &*self.0;
        http2.borrow_mut().send_trailers(*stream, fields)
    }

    /// Ends the call without an answer.
    pub(in crate::grpc) fn reset(&mut self, reason: Reason) {
        let StreamHandle { http2, stream } = &*self.0;
        http2.borrow_mut().reset(*stream, reason);
    }

    /// Ready when the client has withdrawn the call, or is gone.
    pub(in crate::grpc) fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let StreamHandle { http2, stream } = &*self.0;
        http2.borrow_mut().poll_reset(*stream, context)
    }
}
