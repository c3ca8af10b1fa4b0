//! Short waits of a shard outside of its executor.
//!
//! A shard with one connection of HTTP/1 has only one thing to wait for at any time: the reply to
//! the one request in flight, or the next request. Everything else that may come (new connections,
//! heartbeats, drain) comes through the mailbox. Such a shard blocks on the mailbox, or on the
//! socket, for a short time, where that is cheaper than the executor's way into sleep and out of it
//! (`GAINS_BY_BRIEF_WAITS` of the runtime: so it is with glommio).
//!
//! A wait lasts [`WAIT_NS_MAX`] at most, and the mailbox is looked at between two waits: so late
//! may a message of another thread be handled, or the end of the connection be noticed. None begins
//! after [`BEGIN_NS_MAX`] of a turn: so late may a timer fire, and the only ones that run then are
//! those of idle connections. Requests with a deadline are not waited for. Where clients or models
//! take longer than a wait, waits are in vain, and become rare: 750 us in 4,096 requests.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use conch_engine::clock;
use conch_sync::{Messages, Receiver, TrialBackoff};

/// The longest wait.
const WAIT_NS_MAX: u64 = 250_000;
/// After this part of a turn no wait begins.
const BEGIN_NS_MAX: u64 = 2_000_000;

/// When a shard waits outside of its executor. One per shard.
pub(crate) struct BriefWait {
    is_enabled: bool,
    /// When the first wait of the turn began; 0 before it.
    turn_begin_ns: Cell<u64>,
    awaits_reply: Cell<bool>,
    replies: TrialBackoff,
    requests: TrialBackoff,
}

impl BriefWait {
    pub(super) fn new(is_enabled: bool) -> BriefWait {
        BriefWait {
            is_enabled,
            turn_begin_ns: Cell::new(0),
            awaits_reply: Cell::new(false),
            replies: TrialBackoff::skipping(0),
            requests: TrialBackoff::skipping(0),
        }
    }

    /// A request is about to be submitted, the only one of the only connection if `is_alone`:
    /// whether the shard is to wait for its reply by [`BriefWait::wait_for_reply`].
    pub(super) fn expect_reply(&self, is_alone: bool) -> bool {
        let awaits = self.is_enabled && is_alone && self.replies.is_due() && self.may_begin();
        self.awaits_reply.set(awaits);
        awaits
    }

    /// Something else brought messages.
    pub(super) fn forget_reply(&self) {
        self.awaits_reply.set(false);
    }

    /// Blocks until messages come, if a reply is expected; none after the longest wait.
    pub(super) fn wait_for_reply<T: Send>(
        &self,
        receiver: &mut Receiver<T>,
    ) -> Option<Messages<T>> {
        if !self.awaits_reply.take() {
            return None;
        }
        let messages = wait_on_thread(receiver, Duration::from_nanos(WAIT_NS_MAX));
        self.replies.note(messages.is_some());
        messages
    }

    /// Blocks until the client of the only connection sends something, or ends it; false after the
    /// longest wait, or if there is none now. `is_alone`: no request is in flight, and there is no
    /// other connection.
    pub(super) fn wait_for_request(&self, is_alone: bool, socket: RawFd) -> bool {
        if !(self.is_enabled && is_alone && self.requests.is_due() && self.may_begin()) {
            return false;
        }
        let has_come = conch_net::wait_readable(socket, Duration::from_nanos(WAIT_NS_MAX));
        self.requests.note(has_come);
        has_come
    }

    fn may_begin(&self) -> bool {
        let now_ns = clock::monotonic_ns();
        let turn_begin_ns = match self.turn_begin_ns.get() {
            0 => now_ns,
            begin_ns => begin_ns,
        };
        let may_begin = now_ns.saturating_sub(turn_begin_ns) < BEGIN_NS_MAX;
        // Refused, the shard goes into its executor, and a turn ends.
        self.turn_begin_ns
            .set(if may_begin { turn_begin_ns } else { 0 });
        may_begin
    }
}

thread_local! {
    static WAKER: Waker = Waker::from(Arc::new(UnparkWaker(std::thread::current())));
}

/// Wakes a thread that is parked.
struct UnparkWaker(Thread);

impl Wake for UnparkWaker {
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
    let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let end_ns = clock::monotonic_ns().saturating_add(limit_ns);
    loop {
        if let Poll::Ready(messages) = receiver.poll_take(&mut context) {
            return Some(messages);
        }
        let left_ns = end_ns.saturating_sub(clock::monotonic_ns());
        if left_ns == 0 {
            // A notification finds nobody to wake until the pump arms the event again.
            receiver.mailbox().disarm();
            return None;
        }
        std::thread::park_timeout(Duration::from_nanos(left_ns));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

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
    fn only_a_shard_that_is_alone_waits() {
        let (mailbox, mut receiver) = Mailbox::new();
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"GET").unwrap();
        mailbox.post(1).unwrap();
        for (is_enabled, is_alone, waits) in [
            (false, true, false),
            (true, false, false),
            (true, true, true),
        ] {
            let brief_wait = BriefWait::new(is_enabled);
            let socket = server.as_raw_fd();
            assert_eq!(brief_wait.wait_for_request(is_alone, socket), waits);
            assert_eq!(brief_wait.expect_reply(is_alone), waits);
            let replies = brief_wait.wait_for_reply(&mut receiver);
            assert_eq!(replies.is_some(), waits);
        }
        let brief_wait = BriefWait::new(true);
        assert!(brief_wait.expect_reply(true));
        brief_wait.forget_reply();
        assert!(brief_wait.wait_for_reply(&mut receiver).is_none());
    }

    #[test]
    fn a_turn_has_an_end() {
        let brief_wait = BriefWait::new(true);
        assert!(brief_wait.may_begin());
        while brief_wait.may_begin() {}
        assert!(brief_wait.may_begin(), "another turn");
    }
}
