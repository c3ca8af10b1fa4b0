//! Waiting on a shard for what backends say of their readiness.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use conch_engine::model::readiness::ReadinessProbe;

use crate::shard::Timer;

/// The answer of a readiness probe, or its default when none comes in time.
pub(crate) struct ProbeWithTimeout {
    probe: ReadinessProbe,
    timer: Timer,
}

impl ProbeWithTimeout {
    pub(crate) fn new(probe: ReadinessProbe) -> ProbeWithTimeout {
        ProbeWithTimeout {
            timer: Timer::at(probe.deadline_ns()),
            probe,
        }
    }
}

impl Future for ProbeWithTimeout {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        if let Poll::Ready(is_ready) = Pin::new(&mut self.probe).poll(context) {
            return Poll::Ready(is_ready);
        }
        std::task::ready!(Pin::new(&mut self.timer).poll(context));
        Poll::Ready(self.probe.abandon())
    }
}
