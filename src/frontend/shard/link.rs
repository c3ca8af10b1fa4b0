//! What other threads hold of a shard: its mailbox and a few counters.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use conch_channel::{Mailbox, Receiver};
use conch_engine::{Completion, Delivery};

/// Which listener a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
    Metrics,
    SageMaker,
    VertexAi,
}

/// What can be sent to a shard. The mailbox boxes each letter, so the large kind costs the others nothing.
#[expect(clippy::large_enum_variant)]
pub(crate) enum Letter {
    /// From a core. Bounded by the requests in flight, which admission bounds: one final delivery each, and what comes before it is paid
    /// with credits, but for the first response of a one-to-one model.
    Delivery(Delivery),
    /// From an acceptor. Bounded by the connections' limit.
    Connection(OwnedFd, Protocol),
    /// Look at the connections' deadlines, and show that you still turn. One at a time.
    Poke,
    /// Finish what is in flight, close what is idle.
    Drain,
    /// Drop everything that is left and return.
    Stop,
}

pub(crate) struct Link {
    mailbox: Arc<Mailbox<Letter>>,
    /// Wakes the pump, whatever the mailbox's door thinks of it.
    pump_waker: OnceLock<Waker>,
    connection_count: AtomicUsize,
    /// Pokes sent and answered. Written by the watchdog and by the shard.
    poke_count: AtomicU64,
    answer_count: AtomicU64,
    in_flight_count: AtomicUsize,
    /// Something other than a poke was sent since [`Link::is_quiet`] was last asked.
    is_stirred: AtomicBool,
}

impl Link {
    /// A link, and the receiving end for the shard.
    pub(crate) fn new() -> (Arc<Link>, Receiver<Letter>) {
        let (mailbox, receiver) = Mailbox::new();
        let link = Link {
            mailbox,
            pump_waker: OnceLock::new(),
            connection_count: AtomicUsize::new(0),
            poke_count: AtomicU64::new(0),
            answer_count: AtomicU64::new(0),
            in_flight_count: AtomicUsize::new(0),
            is_stirred: AtomicBool::new(true),
        };
        (Arc::new(link), receiver)
    }

    /// Posts and wakes. A letter to a shard that has ended is dropped; its socket closes.
    pub(crate) fn send(&self, letter: Letter) {
        if !matches!(letter, Letter::Poke) {
            self.is_stirred.store(true, Ordering::Relaxed);
        }
        let is_connection = matches!(letter, Letter::Connection(..));
        if is_connection {
            self.connection_count.fetch_add(1, Ordering::Relaxed);
        }
        if self.mailbox.post(letter).is_err() && is_connection {
            self.connection_closed();
        }
        self.mailbox.ring();
    }

    /// The shard will look into its mailbox without being woken.
    pub(super) fn disarm(&self) {
        self.mailbox.disarm();
    }

    /// The shard's pump can be woken by `waker` from now on.
    pub(super) fn keep_pump_waker(&self, waker: &Waker) {
        self.pump_waker.get_or_init(|| waker.clone());
    }

    /// Pokes the shard, unless the last poke is still unanswered: then returns false.
    ///
    /// Either way its executor is woken. Ringing would not do: a pump that was woken but not run has its door open, and the executor may
    /// sleep on such a task (see `PREEMPT_AFTER`). A timer on the shard would not do either: its task could be the one that is slept on,
    /// and arming it would cost two system calls per sleep.
    pub(crate) fn poke(&self) -> bool {
        let sent_count = self.poke_count.load(Ordering::Relaxed);
        let is_answered = self.answer_count.load(Ordering::Relaxed) >= sent_count;
        if is_answered {
            self.poke_count.store(sent_count + 1, Ordering::Relaxed);
            self.send(Letter::Poke);
        }
        if let Some(waker) = self.pump_waker.get() {
            waker.wake_by_ref();
        }
        is_answered
    }

    /// Whether a poke would find nothing to do: the last one is answered, it told of no requests, and since the last call there was no
    /// letter and no connection.
    pub(crate) fn is_quiet(&self) -> bool {
        let was_stirred = self.is_stirred.swap(false, Ordering::Relaxed);
        let sent_count = self.poke_count.load(Ordering::Relaxed);
        !was_stirred
            && self.connection_count() == 0
            && self.in_flight_count() == 0
            && self.answer_count.load(Ordering::Relaxed) >= sent_count
    }

    /// The shard's answer to a poke: how many requests it has in flight.
    pub(crate) fn answer(&self, in_flight_count: usize) {
        self.in_flight_count
            .store(in_flight_count, Ordering::Relaxed);
        self.answer_count.fetch_add(1, Ordering::Relaxed);
    }

    /// As of the last answer.
    pub(crate) fn in_flight_count(&self) -> usize {
        self.in_flight_count.load(Ordering::Relaxed)
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.connection_count.load(Ordering::Relaxed)
    }

    pub(crate) fn connection_closed(&self) {
        self.connection_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Completion for Link {
    fn deliver(&self, delivery: Delivery) {
        // Refused only when the shard has ended: nobody waits any more.
        let _ = self.mailbox.post(Letter::Delivery(delivery));
    }

    fn wake(&self) {
        self.mailbox.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::WakeCount;

    #[test]
    fn only_what_has_nothing_to_do_is_quiet() {
        let (link, _receiver) = Link::new();
        assert!(!link.is_quiet(), "it has only begun");
        assert!(link.is_quiet());
        link.send(Letter::Drain);
        assert!(!link.is_quiet() && link.is_quiet(), "a letter");
        link.poke();
        assert!(!link.is_quiet(), "a poke without an answer");
        link.answer(3);
        assert!(!link.is_quiet(), "requests in flight");
        link.poke();
        link.answer(0);
        assert!(link.is_quiet());
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        link.send(Letter::Connection(socket.into(), Protocol::Http));
        for _ in 0..3 {
            assert!(!link.is_quiet(), "a connection");
        }
        link.connection_closed();
        assert!(link.is_quiet());
    }

    #[test]
    fn every_poke_wakes_a_pump_whose_door_is_open() {
        let (link, _receiver) = Link::new();
        let count = Arc::new(WakeCount::default());
        link.keep_pump_waker(&Waker::from(Arc::clone(&count)));
        assert!(link.poke(), "the first is sent");
        assert!(!link.poke() && !link.poke(), "none was answered");
        assert_eq!(count.get(), 3);
        link.answer(0);
        assert!(link.poke());
        assert_eq!(count.get(), 4);
    }
}
