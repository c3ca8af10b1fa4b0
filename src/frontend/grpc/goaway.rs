//! How a connection ends without a call lost: GOAWAY, in steps.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use conch_engine::clock;
use h2::Reason;
use h2::server::Connection as Http2;

use super::settings::GOAWAY_TIMEOUT;
use super::transport::{FramedSocket, Payload, Transport};
use crate::shard::Timer;

/// How far the connection is on its way to its end, once the shard drains or it is old enough.
///
/// The states follow one another in the order in which they stand here; `Announced` is left out
/// where the connection is idle.
///
/// A GOAWAY that names no last call still lets calls in that the peer sent before it learnt. h2
/// sends a ping behind it, takes the answer as a sign that the peer has learnt, and names the last
/// call that is served. But a client's answer may leave before the frames of calls that it had
/// begun, as gRPC's C core has it. For such a call h2 ignores all frames but a WINDOW_UPDATE, which
/// it takes for an error that ends every call. So the transport announces the end first, while h2
/// lets calls in, and h2 sends its ping after a while. Where nothing has come for that long, no
/// call is taken to be on its way, and h2 sends it at once.
///
/// Not every peer answers while it is idle, so after a while it is not waited for: calls that come
/// too late lie behind the last one named, and the peer may repeat them elsewhere.
pub(super) enum GoawayState {
    None,
    /// To be announced as soon as h2 is not in the middle of a frame.
    Requested,
    Announced(Timer),
    /// h2 waits for the answer to its ping.
    AwaitingPong(Timer),
    /// To be ended as soon as no call is left.
    Draining,
    Sent,
}

impl GoawayState {
    /// Takes the next step if it is due. Whether h2 is to be polled for that.
    pub(super) fn advance(
        &mut self,
        http2: &mut Http2<Transport, Payload>,
        socket: &RefCell<FramedSocket>,
        context: &mut Context<'_>,
    ) -> bool {
        let next = match self {
            GoawayState::Requested if is_idle(http2, socket) => Some(send_ping(http2)),
            GoawayState::Requested => {
                let is_announced = socket.borrow_mut().announce_end();
                is_announced.then(|| GoawayState::Announced(Timer::after(GOAWAY_TIMEOUT)))
            }
            GoawayState::Announced(timer) => {
                let is_over = Pin::new(timer).poll(context).is_ready();
                is_over.then(|| send_ping(http2))
            }
            GoawayState::AwaitingPong(timer) => {
                let is_over = Pin::new(timer).poll(context).is_ready();
                is_over.then_some(GoawayState::Draining)
            }
            GoawayState::Draining if !http2.has_streams() => {
                http2.abrupt_shutdown(Reason::NO_ERROR);
                Some(GoawayState::Sent)
            }
            GoawayState::None | GoawayState::Draining | GoawayState::Sent => None,
        };
        let has_moved = next.is_some();
        if let Some(next) = next {
            *self = next;
        }
        has_moved
    }
}

/// Whether no call is open and none has been for a while.
fn is_idle(http2: &Http2<Transport, Payload>, socket: &RefCell<FramedSocket>) -> bool {
    let received_ns = socket.borrow().received_ns();
    !http2.has_streams()
        && Duration::from_nanos(clock::monotonic_ns().saturating_sub(received_ns)) >= GOAWAY_TIMEOUT
}

fn send_ping(http2: &mut Http2<Transport, Payload>) -> GoawayState {
    http2.graceful_shutdown();
    GoawayState::AwaitingPong(Timer::after(GOAWAY_TIMEOUT))
}
