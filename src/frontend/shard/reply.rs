//! Requests in flight on a shard, and the futures that wait for them.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use conch_engine::{Code, Delivery, Error, Response, Ticket};

use super::Shard;
use super::slab::Slab;
use super::timer::Timer;

/// One request between admission and its final delivery.
pub(crate) struct Entry {
    waker: Option<Waker>,
    outcome: Option<Result<Response, Error>>,
    response_count: u32,
    is_final: bool,
    is_abandoned: bool,
}

/// All of them; the slot of a delivery is the key.
pub(crate) struct InFlight {
    table: Slab<Entry>,
    count_max: usize,
}

impl InFlight {
    pub(crate) fn new(count_max: usize) -> InFlight {
        InFlight {
            table: Slab::new(),
            count_max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// A slot for a new request; none at the bound.
    pub(crate) fn reserve(&mut self) -> Option<u64> {
        if self.table.len() >= self.count_max {
            return None;
        }
        Some(self.table.insert(Entry {
            waker: None,
            outcome: None,
            response_count: 0,
            is_final: false,
            is_abandoned: false,
        }))
    }

    pub(crate) fn release(&mut self, slot: u64) {
        self.table.remove(slot);
    }

    /// Books a delivery. Returns the waker of whoever waits for it, to be woken when no borrow is held.
    pub(crate) fn book(&mut self, delivery: Delivery) -> Option<Waker> {
        let entry = self.table.get_mut(delivery.slot)?;
        if let Some(outcome) = delivery.outcome {
            entry.response_count = entry.response_count.saturating_add(1);
            entry.outcome = Some(match entry.response_count {
                1 => outcome,
                count => Err(wrong_count(count)),
            });
        }
        if !delivery.is_final {
            return None;
        }
        if entry.is_abandoned {
            self.table.remove(delivery.slot);
            return None;
        }
        entry.is_final = true;
        entry.waker.take()
    }

    fn take(&mut self, slot: u64, context: &mut Context<'_>) -> Poll<Result<Response, Error>> {
        let Some(entry) = self.table.get_mut(slot) else {
            return Poll::Ready(Err(Error::internal("the request is not in flight")));
        };
        if !entry.is_final {
            match &mut entry.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let entry = self.table.remove(slot).expect("it was found above");
        Poll::Ready(entry.outcome.unwrap_or_else(|| Err(wrong_count(0))))
    }

    fn abandon(&mut self, slot: u64) {
        if let Some(entry) = self.table.get_mut(slot) {
            if entry.is_final {
                self.table.remove(slot);
            } else {
                entry.is_abandoned = true;
                entry.waker = None;
                entry.outcome = None;
            }
        }
    }
}

fn wrong_count(count: u32) -> Error {
    Error::internal(format!("expected a single response, got {count}"))
}

/// The one response of a request in flight. Dropping it cancels the request.
pub struct Reply {
    shard: Rc<Shard>,
    slot: u64,
    ticket: Ticket,
    timer: Option<Timer>,
    is_done: Cell<bool>,
}

impl Reply {
    pub(crate) fn new(shard: &Rc<Shard>, slot: u64, ticket: Ticket, timer: Option<Timer>) -> Reply {
        Reply {
            shard: Rc::clone(shard),
            slot,
            ticket,
            timer,
            is_done: Cell::new(false),
        }
    }

    /// Withdraws the request: at once if it still waits, else the executor sees the wish and the answer is thrown away. The error is
    /// what the request is answered with.
    fn withdraw(&self) -> Error {
        self.is_done.set(true);
        match conch_engine::withdraw(&self.ticket) {
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

impl Future for Reply {
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

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_done.get() {
            self.withdraw();
        }
    }
}
