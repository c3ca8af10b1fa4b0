//! Time on a shard.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use conch_engine::clock;

/// Completes at its time. Creating and dropping one costs a fraction of a microsecond; only the
/// nearest of a shard is known to the kernel. May be late by the length of a shard turn, never
/// early.
pub struct Timer {
    inner: glommio::timer::Timer,
}

impl Timer {
    pub fn after(delay: Duration) -> Timer {
        Timer {
            inner: glommio::timer::Timer::new(delay),
        }
    }

    /// At `deadline_ns` of the monotonic clock; at once if that is past.
    pub fn at(deadline_ns: u64) -> Timer {
        Timer::after(Duration::from_nanos(
            deadline_ns.saturating_sub(clock::monotonic_ns()),
        ))
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.get_mut().inner)
            .poll(context)
            .map(|_| ())
    }
}

/// Ends the task's turn by way of a timer that is due at once, so that the whole shard looks at its
/// sockets, wake-ups and timers. For work that comes in slices.
///
/// A task that wakes itself instead (as `yield_now` does) is run again in the same turn of the
/// executor, before it looks at anything else.
pub async fn yield_now() {
    Timer::after(Duration::from_micros(1)).await;
}
