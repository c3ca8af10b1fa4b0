//! Waiting for the only reply that can come.
//!
//! The way into the executor's sleep and out of it takes five system calls, as it sleeps on several
//! rings and arms timers. A shard with one connection, whose client waits for the one request that
//! is in flight, has nothing else to wait for: an HTTP/1 client sends its next request when it has
//! the answer, and everything from other threads (replies, new connections, heartbeats, drain)
//! comes through the mailbox. Such a shard blocks on the mailbox itself, for a bounded time: one
//! system call to sleep and one to be woken.
//!
//! The bound keeps the invariant that no turn exceeds 500 us: until it has passed, a timer of this
//! shard and the end of the connection are noticed late. Where models take longer than the bound
//! the waits are in vain, so each failure makes the next ones rarer by four, each success more
//! frequent by two.
//!
//! Measured with a model in Python, one connection, all on one CPU (`perf/compare --python`, 64 B):
//! see docs/PERFORMANCE.md.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use conch_sync::{Messages, Receiver};

/// The longest wait.
const LIMIT: Duration = Duration::from_micros(250);
/// Requests without a wait after failures, at most: 250 us in 4,096 requests.
const PENALTY_MAX: u32 = 1 << 12;

/// When to block on the mailbox. One per shard.
pub(super) struct ReplyWait {
    is_enabled: bool,
    is_wished: Cell<bool>,
    skip_count: Cell<u32>,
    penalty: Cell<u32>,
}

impl ReplyWait {
    pub(super) fn new(is_enabled: bool) -> ReplyWait {
        ReplyWait {
            is_enabled,
            is_wished: Cell::new(false),
            skip_count: Cell::new(0),
            penalty: Cell::new(0),
        }
    }

    /// A request is about to be submitted: whether the shard should wait for its reply.
    /// `is_alone`: no other connection and no other request is there.
    pub(super) fn wish(&self, is_alone: bool) -> bool {
        let is_wished = self.is_enabled && is_alone && self.passes();
        self.is_wished.set(is_wished);
        is_wished
    }

    fn passes(&self) -> bool {
        let skip_count = self.skip_count.get();
        self.skip_count.set(skip_count.saturating_sub(1));
        skip_count == 0
    }

    /// Blocks until messages come, if that was wished, at most for [`LIMIT`].
    pub(super) fn wait<T: Send>(&self, receiver: &mut Receiver<T>) -> Option<Messages<T>> {
        if !self.is_wished.take() {
            return None;
        }
        let messages = wait_on_thread(receiver, LIMIT);
        let penalty = match &messages {
            Some(_) => self.penalty.get() / 2,
            None => (self.penalty.get() * 4).clamp(4, PENALTY_MAX),
        };
        self.penalty.set(penalty);
        self.skip_count.set(penalty);
        messages
    }

    /// The wish is over: something else brought messages.
    pub(super) fn withdraw(&self) {
        self.is_wished.set(false);
    }
}

thread_local! {
    static WAKER: Waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
}

/// Wakes a thread that is parked.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks the calling thread until messages come; none after `limit`.
fn wait_on_thread<T: Send>(receiver: &mut Receiver<T>, limit: Duration) -> Option<Messages<T>> {
    let waker = WAKER.with(Waker::clone);
    let mut context = Context::from_waker(&waker);
    let end = Instant::now() + limit;
    loop {
        if let Poll::Ready(messages) = receiver.poll_take(&mut context) {
            return Some(messages);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // Whoever notifies finds nobody to wake until the pump arms the event again.
            receiver.mailbox().disarm();
            return None;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use conch_sync::Mailbox;

    use super::*;

    #[test]
    fn a_wait_ends_with_the_message_of_another_thread() {
        let (mailbox, mut receiver) = Mailbox::new();
        for number in 0..1000 {
            let poster = std::thread::spawn({
                let mailbox = Arc::clone(&mailbox);
                move || {
                    mailbox.post(number).unwrap();
                    mailbox.notify();
                }
            });
            let minute = Duration::from_secs(60);
            let messages = wait_on_thread(&mut receiver, minute);
            let messages: Vec<u32> = messages.expect("it was posted").collect();
            assert_eq!(messages, [number]);
            poster.join().unwrap();
        }
    }

    #[test]
    fn only_a_shard_that_is_alone_waits_and_failures_make_it_rare() {
        let (_mailbox, mut receiver) = Mailbox::<()>::new();
        let off = ReplyWait::new(false);
        assert!(!off.wish(true));
        let reply_wait = ReplyWait::new(true);
        assert!(!reply_wait.wish(false));
        assert!(reply_wait.wait(&mut receiver).is_none());
        let waits: Vec<u32> = (0..100)
            .filter(|_| {
                let is_wished = reply_wait.wish(true);
                assert!(reply_wait.wait(&mut receiver).is_none());
                is_wished
            })
            .collect();
        assert_eq!(waits, [0, 5, 22, 87]);
    }
}
