//! What other threads hold of a shard: its mailbox and a few counters.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use conch_channel::{Mailbox, Receiver};
use conch_engine::{Completion, Delivery};

/// Which listener a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
    Metrics,
}

/// What can be sent to a shard. The mailbox boxes each letter, so the large kind costs the others nothing.
#[expect(clippy::large_enum_variant)]
pub(crate) enum Letter {
    /// From a core. Bounded by the requests in flight, which admission bounds: one final delivery each, and of what comes before
    /// it only the first response of a one-to-one model.
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
    connection_count: AtomicUsize,
    /// Pokes sent and answered. Written by the watchdog and by the shard.
    poke_count: AtomicU64,
    answer_count: AtomicU64,
    in_flight_count: AtomicUsize,
}

impl Link {
    /// A link, and the receiving end for the shard.
    pub(crate) fn new() -> (Arc<Link>, Receiver<Letter>) {
        let (mailbox, receiver) = Mailbox::new();
        let link = Link {
            mailbox,
            connection_count: AtomicUsize::new(0),
            poke_count: AtomicU64::new(0),
            answer_count: AtomicU64::new(0),
            in_flight_count: AtomicUsize::new(0),
        };
        (Arc::new(link), receiver)
    }

    /// Posts and wakes. A letter to a shard that has ended is dropped; its socket closes.
    pub(crate) fn send(&self, letter: Letter) {
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

    /// Pokes the shard, unless the last poke is still unanswered: then returns false.
    pub(crate) fn poke(&self) -> bool {
        let sent_count = self.poke_count.load(Ordering::Relaxed);
        if self.answer_count.load(Ordering::Relaxed) < sent_count {
            // Rings again: if the last wake was lost, this one may arrive.
            self.mailbox.ring();
            return false;
        }
        self.poke_count.store(sent_count + 1, Ordering::Relaxed);
        self.send(Letter::Poke);
        true
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
