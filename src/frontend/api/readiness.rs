//! Waiting on a shard for what backends say of their readiness.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use conch_engine::readiness::Inquiry;

use crate::shard::Timer;

/// The answer of an inquiry, or its default when none comes in time.
pub(crate) struct Patient {
    inquiry: Inquiry,
    timer: Timer,
}

impl Patient {
    pub(crate) fn new(inquiry: Inquiry) -> Patient {
        Patient {
            timer: Timer::at(inquiry.deadline_ns()),
            inquiry,
        }
    }
}

impl Future for Patient {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        if let Poll::Ready(is_ready) = Pin::new(&mut self.inquiry).poll(context) {
            return Poll::Ready(is_ready);
        }
        std::task::ready!(Pin::new(&mut self.timer).poll(context));
        Poll::Ready(self.inquiry.give_up())
    }
}
