//! The events of one client, as its connection asks for them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use conch_engine::clock::monotonic_ns;

use super::feed::FeedClient;
use crate::http::connection::BodySource;
use crate::shard::Timer;

/// How long after the next event is due a client looks for it, and how soon again where it is not
/// there. Woken by the shard's own clock, a client costs its shard nothing in between, and no
/// thread has to wake a shard.
const LOOK_DELAY: Duration = Duration::from_millis(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The layout, then each event that is there when the connection can take one. What comes while the
/// client does not read is left out.
pub(crate) struct FeedSource {
    client: FeedClient,
    has_layout: bool,
    /// Of the last event that was sent.
    number: u64,
    timer: Option<Timer>,
}

impl FeedSource {
    pub(crate) fn new(client: FeedClient) -> FeedSource {
        FeedSource {
            client,
            has_layout: false,
            number: 0,
            timer: None,
        }
    }
}

impl BodySource for FeedSource {
    fn poll_piece(&mut self, context: &mut Context<'_>, target: &mut Vec<u8>) -> Poll<bool> {
        if !self.has_layout {
            self.has_layout = true;
            target.extend_from_slice(self.client.layout().as_bytes());
            return Poll::Ready(true);
        }
        loop {
            if let Some(timer) = &mut self.timer {
                ready!(Pin::new(timer).poll(context));
                self.timer = None;
            }
            let latest = self.client.latest();
            let again_ns = monotonic_ns().saturating_add(nanoseconds(LOOK_AGAIN));
            let look_ns = match latest {
                Some(event) if event.number != self.number => {
                    self.number = event.number;
                    self.timer = Some(Timer::at(event.next_ns + nanoseconds(LOOK_DELAY)));
                    target.extend_from_slice(event.text.as_bytes());
                    return Poll::Ready(true);
                }
                Some(event) => again_ns.max(event.next_ns + nanoseconds(LOOK_DELAY)),
                None => again_ns,
            };
            self.timer = Some(Timer::at(look_ns));
        }
    }

    fn note_sent(&mut self) {}
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
