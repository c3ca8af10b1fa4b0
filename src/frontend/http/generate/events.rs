//! The responses of one request as server-sent events, one by one as the connection asks for them.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use conch_engine::{Code, Delivery, Error, Response};

use super::encode::write_event;
use crate::http::connection::BodySource;
use crate::http::deadline;
use crate::http::infer::encode::OFFLOAD_FROM_BYTES;
use crate::shard::{ResponseQueue, Shard, StreamRequest, Timer};

/// The tail of an answer: what has come after the first event, and what is still to come. Dropping
/// it cancels the request.
pub(super) struct EventStream {
    shard: Rc<Shard>,
    responses: Rc<ResponseQueue>,
    /// None once its time is over.
    flight: Option<StreamRequest>,
    deadline: Option<Timer>,
    id: Rc<str>,
    /// The first event, which had to be known before the answer's head.
    first: Option<Vec<u8>>,
    /// The final delivery has come.
    is_over: bool,
    /// Bytes of the responses that are written but not yet paid back.
    unpaid: Vec<u64>,
    /// A large response in the making.
    making: Option<EventFuture>,
}

/// Yields an event, and the code if it tells of an error.
type EventFuture = Pin<Box<dyn Future<Output = (Vec<u8>, Option<Code>)>>>;

impl EventStream {
    pub(super) fn new(
        shard: &Rc<Shard>,
        responses: Rc<ResponseQueue>,
        flight: StreamRequest,
        id: Box<str>,
    ) -> EventStream {
        EventStream {
            shard: Rc::clone(shard),
            responses,
            flight: Some(flight),
            deadline: None,
            id: id.into(),
            first: None,
            is_over: false,
            unpaid: Vec::new(),
            making: None,
        }
    }

    /// Cancels the request then, with an event that says so.
    pub(super) fn until(mut self, deadline_ns: Option<u64>) -> EventStream {
        self.deadline = deadline_ns.map(Timer::at);
        self
    }

    /// Waits for the first event, and keeps it. Returns the code if it tells of an error; the
    /// request may also end without any.
    pub(super) async fn begin(&mut self) -> Option<Code> {
        let mut event = Vec::new();
        let code = std::future::poll_fn(|context| {
            // Nothing but a final delivery may come without a response, so what comes first is an
            // event or the end.
            self.poll_event(context, &mut event)
        })
        .await;
        self.first = Some(event);
        code.flatten()
    }

    /// Appends the next event; with its code if it tells of an error, with nothing at the end.
    fn poll_event(
        &mut self,
        context: &mut Context<'_>,
        target: &mut Vec<u8>,
    ) -> Poll<Option<Option<Code>>> {
        loop {
            if let Some(making) = &mut self.making {
                let (event, code) = ready!(making.as_mut().poll(context));
                self.making = None;
                target.extend_from_slice(&event);
                return Poll::Ready(Some(code));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            if let Some(deadline) = &mut self.deadline
                && Pin::new(deadline).poll(context).is_ready()
            {
                self.flight = None;
                self.is_over = true;
                let outcome = Err(Error::new(Code::Cancelled, deadline::EXCEEDED));
                return Poll::Ready(Some(write_event(target, &outcome, &self.id)));
            }
            let Some(delivery) = self.responses.take(context) else {
                return Poll::Pending;
            };
            if let Some(outcome) = self.receive(delivery) {
                if outcome.as_ref().map_or(0, Response::byte_size) < OFFLOAD_FROM_BYTES as u64 {
                    return Poll::Ready(Some(write_event(target, &outcome, &self.id)));
                }
                self.making = Some(self.make_blocking(outcome));
            }
        }
    }

    fn receive(&mut self, delivery: Delivery) -> Option<Result<Response, Error>> {
        let flight = self.flight.as_mut();
        if delivery.is_final() {
            flight.into_iter().for_each(StreamRequest::note_final);
            self.is_over = true;
        } else if let Some(outcome) = delivery.outcome()
            && flight.is_some_and(|flight| flight.credits().is_some())
        {
            self.unpaid
                .push(outcome.as_ref().map_or(0, Response::byte_size));
        }
        delivery.into_outcome()
    }

    fn make_blocking(&self, outcome: Result<Response, Error>) -> EventFuture {
        let (shard, id) = (Rc::clone(&self.shard), Box::<str>::from(&*self.id));
        Box::pin(async move {
            let cost_bytes = outcome.as_ref().map_or(0, Response::byte_size);
            let work = move || {
                let mut event = Vec::new();
                let code = write_event(&mut event, &outcome, &id);
                (event, code)
            };
            shard.offload(cost_bytes, work).await
        })
    }
}

impl BodySource for EventStream {
    fn poll_piece(&mut self, context: &mut Context<'_>, target: &mut Vec<u8>) -> Poll<bool> {
        if let Some(first) = self.first.take()
            && !first.is_empty()
        {
            *target = first;
            return Poll::Ready(true);
        }
        self.poll_event(context, target)
            .map(|event| event.is_some())
    }

    fn note_sent(&mut self) {
        if let Some(credits) = self.flight.as_ref().and_then(StreamRequest::credits) {
            for bytes in self.unpaid.drain(..) {
                credits.refund(bytes);
            }
        }
    }
}
