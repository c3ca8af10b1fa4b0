//! Requests in flight, as their connections hold them: futures of their responses.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use conch_engine::{Code, Credits, Error, RequestHandle, Response};

use super::runtime::Timer;
use super::state::Shard;

/// A request in flight whose deliveries go to a [`super::ResponseQueue`]. Dropping it before the
/// final one cancels the request.
pub struct StreamRequest {
    shard: Rc<Shard>,
    slot: u64,
    handle: RequestHandle,
    is_done: bool,
}

impl StreamRequest {
    pub(crate) fn new(shard: &Rc<Shard>, slot: u64, handle: RequestHandle) -> StreamRequest {
        StreamRequest {
            shard: Rc::clone(shard),
            slot,
            handle,
            is_done: false,
        }
    }

    /// `Delivery::slot` of what comes for it.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// What its responses were paid with.
    pub fn credits(&self) -> Option<&Arc<Credits>> {
        self.handle.shared().features.credits.as_ref()
    }

    /// The final delivery has come.
    pub fn note_final(&mut self) {
        self.is_done = true;
    }
}

impl Drop for StreamRequest {
    fn drop(&mut self) {
        if self.is_done {
            // What waits to be read stays paid for.
            return;
        }
        if let Some(credits) = self.credits() {
            credits.close();
        }
        match conch_engine::cancel(&self.handle).into_error() {
            // Ours alone: nobody will deliver for it.
            Some(_) => self.shard.in_flight.borrow_mut().release(self.slot),
            None => self.shard.in_flight.borrow_mut().abandon(self.slot),
        }
    }
}

/// The one response of a request in flight. Dropping it cancels the request.
pub struct ResponseFuture {
    shard: Rc<Shard>,
    slot: u64,
    handle: RequestHandle,
    timer: Option<Timer>,
    is_done: Cell<bool>,
}

impl ResponseFuture {
    pub(crate) fn new(
        shard: &Rc<Shard>,
        slot: u64,
        handle: RequestHandle,
        timer: Option<Timer>,
    ) -> ResponseFuture {
        ResponseFuture {
            shard: Rc::clone(shard),
            slot,
            handle,
            timer,
            is_done: Cell::new(false),
        }
    }

    /// Withdraws the request: at once if it still waits, else the executor sees the wish and the
    /// answer is thrown away. The error is what the request is answered with.
    fn withdraw(&self) -> Error {
        self.is_done.set(true);
        match conch_engine::cancel(&self.handle).into_error() {
            Some(error) => {
                // Ours alone: nobody will deliver for it.
                self.shard.in_flight.borrow_mut().release(self.slot);
                error
            }
            None => {
                self.shard.in_flight.borrow_mut().abandon(self.slot);
                Error::new(Code::Cancelled, "")
            }
        }
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let outcome = this.shard.in_flight.borrow_mut().take(this.slot, context);
        if outcome.is_ready() {
            this.is_done.set(true);
            return outcome;
        }
        if let Some(timer) = &mut this.timer
            && Pin::new(timer).poll(context).is_ready()
        {
            this.timer = None;
            return Poll::Ready(Err(this.withdraw()));
        }
        Poll::Pending
    }
}

impl Drop for ResponseFuture {
    fn drop(&mut self) {
        if !self.is_done.get() {
            self.withdraw();
        }
    }
}
