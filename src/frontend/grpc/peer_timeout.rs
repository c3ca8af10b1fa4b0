//! The deadline of a call: the client's own, or the time at which its peer has stalled for too
//! long.
//!
//! Costs nothing for a call that never waits: the timer is made at the first wait.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use conch_engine::clock;

use super::settings::STALL_TIMEOUT;
use super::status::{GrpcCode, GrpcStatus};
use crate::shard::Timer;

pub(super) struct PeerTimeout {
    /// Monotonic.
    pub(super) deadline_ns: Option<u64>,
    has_progressed: bool,
    timer: Option<Timer>,
}

impl PeerTimeout {
    pub(super) fn new(deadline_ns: Option<u64>) -> PeerTimeout {
        PeerTimeout {
            deadline_ns,
            has_progressed: false,
            timer: None,
        }
    }

    /// The peer has done something.
    pub(super) fn note_progress(&mut self) {
        self.has_progressed = true;
    }

    /// Ready with the reason when the wait is over. To be polled when the peer lets us wait.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<GrpcStatus> {
        loop {
            let Some(timer) = &mut self.timer else {
                let stalled_ns =
                    clock::monotonic_ns().saturating_add(STALL_TIMEOUT.as_nanos() as u64);
                let until_ns = self
                    .deadline_ns
                    .map_or(stalled_ns, |deadline_ns| deadline_ns.min(stalled_ns));
                self.timer = Some(Timer::at(until_ns));
                self.has_progressed = false;
                continue;
            };
            if Pin::new(timer).poll(context).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
            if self
                .deadline_ns
                .is_some_and(|deadline_ns| deadline_ns <= clock::monotonic_ns())
            {
                return Poll::Ready(GrpcStatus::deadline_exceeded());
            }
            if !self.has_progressed {
                let message = format!("the client stalled for {} seconds", STALL_TIMEOUT.as_secs());
                return Poll::Ready(GrpcStatus::new(GrpcCode::Cancelled, message));
            }
        }
    }
}
