//! How a connection ends without a call lost: GOAWAY, in steps.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use conch_engine::clock;

use super::settings::GOAWAY_TIMEOUT;
use super::transport::Http2Connection;
use crate::shard::Timer;

/// How far the connection is on its way to its end, once the shard drains or it is old enough.
///
/// The states follow one another in the order in which they stand here; `Announced` is left out
/// where the connection is idle.
///
/// A GOAWAY that names no last call still lets calls in that the peer sent before it learnt. The
/// answer to a ping behind it shows that the peer has learnt; then the last call that is served is
/// named. But a client's answer may leave before the frames of calls that it had begun, as gRPC's C
/// core has it. So the end is announced first, and the ping is sent after a while. Where nothing
/// has come for that long, no call is taken to be on its way, and it is sent at once.
///
/// Not every peer answers while it is idle, so after a while it is not waited for: calls that come
/// too late lie behind the last one named, and the peer may repeat them elsewhere.
pub(super) enum GoawayState {
    None,
    Requested,
    // Boxed, as for nearly all of its life a connection needs neither.
    Announced(Box<Timer>),
    AwaitingPong(Box<Timer>),
    /// The last call has been named; the connection ends when no call is left.
    Draining,
}

impl GoawayState {
    /// Takes the steps that are due.
    pub(super) fn advance(&mut self, http2: &mut Http2Connection, context: &mut Context<'_>) {
        while let Some(next) = self.next(http2, context) {
            *self = next;
        }
    }

    /// Whether the connection is to end: it has no call, and neither side wants another.
    pub(super) fn is_over(&self, http2: &Http2Connection) -> bool {
        let is_named = matches!(self, GoawayState::Draining);
        (is_named || http2.is_client_leaving()) && !http2.has_streams()
    }

    fn next(
        &mut self,
        http2: &mut Http2Connection,
        context: &mut Context<'_>,
    ) -> Option<GoawayState> {
        match self {
            GoawayState::Requested => {
                http2.announce_end();
                Some(match is_idle(http2) {
                    true => send_ping(http2),
                    false => GoawayState::Announced(Box::new(Timer::after(GOAWAY_TIMEOUT))),
                })
            }
            GoawayState::Announced(timer) => {
                let is_over = Pin::new(&mut **timer).poll(context).is_ready();
                is_over.then(|| send_ping(http2))
            }
            GoawayState::AwaitingPong(timer) => {
                let is_over = http2.take_pong() || Pin::new(&mut **timer).poll(context).is_ready();
                is_over.then(|| {
                    http2.name_last();
                    GoawayState::Draining
                })
            }
            GoawayState::None | GoawayState::Draining => None,
        }
    }
}

/// Whether no call is open and none has been for a while.
fn is_idle(http2: &Http2Connection) -> bool {
    let quiet_ns = clock::monotonic_ns().saturating_sub(http2.received_ns());
    !http2.has_streams() && Duration::from_nanos(quiet_ns) >= GOAWAY_TIMEOUT
}

fn send_ping(http2: &mut Http2Connection) -> GoawayState {
    http2.send_ping();
    GoawayState::AwaitingPong(Box::new(Timer::after(GOAWAY_TIMEOUT)))
}
