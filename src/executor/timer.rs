//! Time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::reactor::{Reactor, now_ns};
use crate::wheel::TimerKey;

/// Completes at its time: never early, late by a turn at most.
///
/// It belongs to the executor on whose thread it is polled first.
pub struct Timer {
    deadline_ns: u64,
    key: Option<TimerKey>,
}

impl Timer {
    pub fn after(delay: Duration) -> Timer {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Timer::at(now_ns().saturating_add(delay_ns))
    }

    /// At `deadline_ns` of the monotonic clock; at once if that is past.
    pub fn at(deadline_ns: u64) -> Timer {
        Timer {
            deadline_ns,
            key: None,
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if now_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        let waker = context.waker();
        let deadline_ns = self.deadline_ns;
        let key = self.key;
        self.key = Reactor::with(|reactor| {
            let mut wheel = reactor.wheel();
            match key {
                Some(key) if wheel.renew(key, waker) => Some(key),
                _ => Some(wheel.insert(deadline_ns, waker.clone())),
            }
        });
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // The waker goes after the wheel is free again: its task may end with it.
            drop(Reactor::try_with(|reactor| reactor.wheel().remove(key)));
        }
    }
}
