//! The call's side of receiving past h2.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{Reason, RecvStream};

use super::incoming::{Incoming, SinkProgress};
use super::sinks::SinkFault;
use crate::grpc::infer::{MessageReader, ReadFault};
use crate::grpc::status::GrpcStatus;

pub(in crate::grpc) type DirectFuture<'a> =
    Pin<Box<dyn Future<Output = Result<DirectArrival, DirectFailure>> + 'a>>;

/// A tensor that misses less is not worth the trouble.
const TENSOR_BYTES_MIN: usize = 64 << 10;

/// Receives large tensors of the calls of one connection.
#[derive(Clone)]
pub(in crate::grpc) struct DirectReceiver {
    incoming: Rc<RefCell<Incoming>>,
}

/// What came.
pub(in crate::grpc) enum DirectArrival {
    /// From h2; none at the end of the stream. Its bytes follow those that the reader has, and
    /// count against the windows.
    Frame(Option<Bytes>),
    /// Nothing from h2: the reader has what came, which may be the rest of the message.
    Reader,
}

/// Why nothing more will come.
#[derive(Debug)]
pub(in crate::grpc) enum DirectFailure {
    Stream,
    Read(ReadFault),
    Reset(Reason),
    Timeout(GrpcStatus),
}

impl DirectReceiver {
    pub(super) fn new(incoming: Rc<RefCell<Incoming>>) -> DirectReceiver {
        DirectReceiver { incoming }
    }

    /// Whether a message in this state is to be received by [`DirectReceiver::next`].
    pub(in crate::grpc) fn wants(reader: &MessageReader) -> bool {
        reader.tensor_left() >= TENSOR_BYTES_MIN
    }

    /// Lets the transport have `reader` until its message is whole, or h2 has something for the
    /// call. Then `reader` is back. `wait` is told whether bytes came since it was asked last, and
    /// says if the client is waited for no longer.
    ///
    /// # Errors
    /// As [`DirectFailure`] says; `reader` may be gone.
    pub(in crate::grpc) fn next<'a>(
        &'a self,
        body: &'a mut RecvStream,
        reader: &'a mut Option<MessageReader>,
        wait: impl FnMut(&mut Context<'_>, bool) -> Poll<GrpcStatus> + 'a,
    ) -> DirectFuture<'a> {
        // Boxed: most calls never need it.
        Box::pin(self.receive(body, reader, wait))
    }

    async fn receive(
        &self,
        body: &mut RecvStream,
        reader: &mut Option<MessageReader>,
        mut wait: impl FnMut(&mut Context<'_>, bool) -> Poll<GrpcStatus>,
    ) -> Result<DirectArrival, DirectFailure> {
        let offer = Offer {
            incoming: &self.incoming,
            stream: body.stream_id().as_u32(),
        };
        let arrival = std::future::poll_fn(|context| {
            if reader.is_none() && offer.is_whole() {
                // Whatever came behind it.
                return Poll::Ready(Ok(DirectArrival::Reader));
            }
            match body.poll_data(context) {
                Poll::Ready(Some(Ok(data))) => {
                    return Poll::Ready(Ok(DirectArrival::Frame(Some(data))));
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(DirectFailure::Stream)),
                Poll::Ready(None) => return Poll::Ready(Ok(DirectArrival::Frame(None))),
                Poll::Pending => {}
            }
            let mut incoming = offer.incoming.borrow_mut();
            let mut has_progressed = false;
            if reader.is_some() {
                incoming.offer(offer.stream, reader, context.waker());
            } else {
                match incoming.poll_sink(offer.stream, context.waker()) {
                    SinkProgress::Closed => return Poll::Ready(Ok(DirectArrival::Reader)),
                    SinkProgress::Open { has_progressed: it } => has_progressed = it,
                }
            }
            drop(incoming);
            let timeout = wait(context, has_progressed);
            timeout.map(|status| Err(DirectFailure::Timeout(status)))
        })
        .await?;
        offer.take_back(reader)?;
        Ok(arrival)
    }
}

/// A reader in the transport's hands, if it is there; ends with this.
struct Offer<'a> {
    incoming: &'a RefCell<Incoming>,
    stream: u32,
}

impl Offer<'_> {
    fn is_whole(&self) -> bool {
        self.incoming.borrow_mut().is_whole(self.stream)
    }

    fn take_back(&self, reader: &mut Option<MessageReader>) -> Result<(), DirectFailure> {
        let Some((own, fault)) = self.incoming.borrow_mut().withdraw(self.stream, true) else {
            return Ok(());
        };
        *reader = Some(own);
        match fault {
            Some(SinkFault::Read(fault)) => Err(DirectFailure::Read(fault)),
            Some(SinkFault::WindowExceeded) => {
                Err(DirectFailure::Reset(Reason::FLOW_CONTROL_ERROR))
            }
            None => Ok(()),
        }
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        self.incoming.borrow_mut().withdraw(self.stream, false);
    }
}
