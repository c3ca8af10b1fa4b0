//! The side of a shard that other threads hold: its mailbox and a few counters.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use conch_engine::{Completion, Delivery};
use conch_sync::{Mailbox, Receiver};

use super::long_turns::LongTurns;
use super::offload::JobDone;

/// Which listener a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
    Metrics,
    SageMaker,
    VertexAi,
}

impl Protocol {
    pub(crate) const ALL: [Protocol; 5] = [
        Protocol::Http,
        Protocol::Grpc,
        Protocol::Metrics,
        Protocol::SageMaker,
        Protocol::VertexAi,
    ];

    /// As labels of metrics have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
            Protocol::Metrics => "metrics",
            Protocol::SageMaker => "sagemaker",
            Protocol::VertexAi => "vertex_ai",
        }
    }

    /// Whether a drain leaves its listener open, and waits for none of its connections.
    pub(crate) fn outlasts_drains(self) -> bool {
        self == Protocol::Metrics
    }
}

/// What can be sent to a shard.
pub(crate) enum ShardMessage {
    /// From a core. Bounded by the requests in flight, which admission bounds: one final delivery
    /// each, and what comes before it is paid with credits, but for the first response of a
    /// one-to-one model.
    Delivery(Delivery),
    /// From an acceptor. Bounded by the connections' limit.
    Connection(OwnedFd, Protocol),
    /// From a thread of the shard's own. Bounded by the jobs that it is given.
    Offloaded(JobDone),
    /// Look at the connections' deadlines, and show that you still turn. One at a time.
    Heartbeat,
    /// Serve on, and have connections end at the next occasion: another process takes their place.
    Retire,
    /// Finish what is in flight, close what is idle.
    Drain,
    /// Drop everything that is left and return.
    Stop,
}

pub(crate) struct ShardHandle {
    mailbox: Arc<Mailbox<ShardMessage>>,
    /// Wakes the pump, whatever the mailbox's door thinks of it.
    pump_waker: OnceLock<Waker>,
    /// By protocol.
    connection_counts: [AtomicUsize; Protocol::ALL.len()],
    /// Heartbeats sent and answered. Written by the watchdog and by the shard.
    heartbeat_count: AtomicU64,
    answer_count: AtomicU64,
    in_flight_count: AtomicUsize,
    /// The system's number of the shard's thread; 0 before it runs.
    thread_id: AtomicI32,
    /// The shard is kept from its CPU, and may run on others. Written by the watchdog.
    is_starving: AtomicBool,
    /// The CPU that the shard is bound to otherwise.
    cpu: OnceLock<usize>,
    /// Something other than a heartbeat was sent since [`ShardHandle::is_quiet`] was last asked.
    is_stirred: AtomicBool,
    long_turns: Arc<LongTurns>,
}

impl ShardHandle {
    /// A link, and the receiving end for the shard.
    pub(crate) fn new() -> (Arc<ShardHandle>, Receiver<ShardMessage>) {
        let (mailbox, receiver) = Mailbox::new();
        let link = ShardHandle {
            mailbox,
            pump_waker: OnceLock::new(),
            connection_counts: Default::default(),
            heartbeat_count: AtomicU64::new(0),
            answer_count: AtomicU64::new(0),
            in_flight_count: AtomicUsize::new(0),
            thread_id: AtomicI32::new(0),
            is_starving: AtomicBool::new(false),
            cpu: OnceLock::new(),
            is_stirred: AtomicBool::new(true),
            long_turns: Arc::default(),
        };
        (Arc::new(link), receiver)
    }

    /// Posts and wakes. A message to a shard that has ended is dropped; its socket closes.
    pub(crate) fn send(&self, message: ShardMessage) {
        if !matches!(message, ShardMessage::Heartbeat) {
            self.is_stirred.store(true, Ordering::Relaxed);
        }
        let protocol = match &message {
            ShardMessage::Connection(_, protocol) => Some(*protocol),
            _ => None,
        };
        if let Some(protocol) = protocol {
            self.count_of(protocol).fetch_add(1, Ordering::Relaxed);
        }
        if let (Err(_), Some(protocol)) = (self.mailbox.post(message), protocol) {
            self.connection_closed(protocol);
        }
        self.mailbox.notify();
    }

    /// Where its long turns are counted.
    pub(crate) fn long_turns(&self) -> &Arc<LongTurns> {
        &self.long_turns
    }

    /// The shard will look into its mailbox without being woken.
    pub(super) fn disarm(&self) {
        self.mailbox.disarm();
    }

    /// Notes where the shard will run alone.
    pub(super) fn bind(&self, cpu: usize) {
        self.cpu.get_or_init(|| cpu);
    }

    /// Notes that the calling thread is the shard's.
    pub(super) fn note_thread(&self) {
        let thread_id = conch_net::affinity::current_thread_id();
        self.thread_id.store(thread_id, Ordering::Relaxed);
    }

    /// None before the shard runs.
    pub(crate) fn thread_id(&self) -> Option<i32> {
        Some(self.thread_id.load(Ordering::Relaxed)).filter(|thread_id| *thread_id != 0)
    }

    pub(crate) fn note_starving(&self, is_starving: bool) {
        self.is_starving.store(is_starving, Ordering::Relaxed);
    }

    /// What one more connection weighs here: where it weighs least it goes.
    pub(crate) fn weight(&self) -> usize {
        let is_starving = self.is_starving.load(Ordering::Relaxed);
        weight(self.connection_count(), is_starving)
    }

    /// The shard's pump can be woken by `waker` from now on.
    pub(super) fn set_pump_waker(&self, waker: &Waker) {
        self.pump_waker.get_or_init(|| waker.clone());
    }

    /// Sends the shard a heartbeat, unless the last one is still unanswered: then returns false.
    ///
    /// Either way its executor is woken. glommio may sleep on a pump that was woken but not run,
    /// whose event is open; a timer on the shard would not help, as its task could be the one that
    /// is slept on.
    pub(crate) fn send_heartbeat(&self) -> bool {
        let sent_count = self.heartbeat_count.load(Ordering::Relaxed);
        let is_answered = self.answer_count.load(Ordering::Relaxed) >= sent_count;
        if is_answered {
            self.heartbeat_count
                .store(sent_count + 1, Ordering::Relaxed);
            self.send(ShardMessage::Heartbeat);
        }
        if let Some(waker) = self.pump_waker.get() {
            waker.wake_by_ref();
        }
        is_answered
    }

    /// Whether a heartbeat would find nothing to do: the last one is answered, it told of no
    /// requests, and since the last call there was no message and no connection.
    pub(crate) fn is_quiet(&self) -> bool {
        let was_stirred = self.is_stirred.swap(false, Ordering::Relaxed);
        let sent_count = self.heartbeat_count.load(Ordering::Relaxed);
        !was_stirred
            && self.connection_count() == 0
            && self.in_flight_count() == 0
            && self.answer_count.load(Ordering::Relaxed) >= sent_count
    }

    /// The shard's answer to a heartbeat: how many requests it has in flight.
    pub(crate) fn answer(&self, in_flight_count: usize) {
        self.in_flight_count
            .store(in_flight_count, Ordering::Relaxed);
        self.answer_count.fetch_add(1, Ordering::Relaxed);
    }

    /// As of the last answer.
    pub(crate) fn in_flight_count(&self) -> usize {
        self.in_flight_count.load(Ordering::Relaxed)
    }

    /// Of all protocols.
    pub(crate) fn connection_count(&self) -> usize {
        let counts = self.connection_counts.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn connection_count_of(&self, protocol: Protocol) -> usize {
        self.count_of(protocol).load(Ordering::Relaxed)
    }

    pub(crate) fn connection_closed(&self, protocol: Protocol) {
        self.count_of(protocol).fetch_sub(1, Ordering::Relaxed);
    }

    fn count_of(&self, protocol: Protocol) -> &AtomicUsize {
        // The order of `Protocol::ALL` is that of its variants.
        &self.connection_counts[protocol as usize]
    }
}

/// A shard that is kept from its CPU gets a connection where another gets four: most go elsewhere,
/// and the others do not drown.
const STARVING_WEIGHT: usize = 4;

fn weight(connection_count: usize, is_starving: bool) -> usize {
    match is_starving {
        true => connection_count
            .saturating_add(1)
            .saturating_mul(STARVING_WEIGHT),
        false => connection_count,
    }
}

impl Completion for ShardHandle {
    fn deliver(&self, delivery: Delivery) {
        // Refused only when the shard has ended: nobody waits any more.
        let _ = self.mailbox.post(ShardMessage::Delivery(delivery));
    }

    fn wake(&self) {
        self.mailbox.notify();
    }

    fn has_waiting(&self) -> bool {
        !self.mailbox.is_empty()
    }

    fn is_on(&self, cpu: usize) -> bool {
        self.cpu.get() == Some(&cpu) && !self.is_starving.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::WakeCount;

    #[test]
    fn only_what_has_nothing_to_do_is_quiet() {
        let (link, _receiver) = ShardHandle::new();
        assert!(!link.is_quiet(), "it has only begun");
        assert!(link.is_quiet());
        link.send(ShardMessage::Drain);
        assert!(!link.is_quiet() && link.is_quiet(), "a message");
        link.send_heartbeat();
        assert!(!link.is_quiet(), "a heartbeat without an answer");
        link.answer(3);
        assert!(!link.is_quiet(), "requests in flight");
        link.send_heartbeat();
        link.answer(0);
        assert!(link.is_quiet());
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        link.send(ShardMessage::Connection(socket.into(), Protocol::Http));
        for _ in 0..3 {
            assert!(!link.is_quiet(), "a connection");
        }
        let counts = Protocol::ALL.map(|protocol| link.connection_count_of(protocol));
        assert_eq!((counts, link.connection_count()), ([1, 0, 0, 0, 0], 1));
        link.connection_closed(Protocol::Http);
        assert!(link.is_quiet());
    }

    #[test]
    fn a_starving_shard_gets_few_connections() {
        // 100 connections, one after the other, among shards with so many.
        let deal = |counts: [usize; 3], is_starving: [bool; 3]| {
            let mut counts = counts;
            for _ in 0..100 {
                let lightest =
                    (0..3).min_by_key(|index| weight(counts[*index], is_starving[*index]));
                counts[lightest.unwrap()] += 1;
            }
            counts
        };
        assert_eq!(deal([0; 3], [false; 3]), [34, 33, 33]);
        assert_eq!(deal([0; 3], [true; 3]), [34, 33, 33]);
        assert_eq!(deal([0; 3], [true, false, false]), [11, 45, 44]);
        assert_eq!(deal([50, 0, 0], [true, false, false]), [50, 50, 50]);
        let (link, _receiver) = ShardHandle::new();
        assert_eq!((link.weight(), link.thread_id()), (0, None));
        assert!(!link.is_on(2));
        link.bind(2);
        assert!(link.is_on(2) && !link.is_on(3));
        link.note_starving(true);
        assert!(!link.is_on(2), "it may run elsewhere");
        link.note_thread();
        assert_eq!(link.weight(), STARVING_WEIGHT);
        assert_eq!(
            link.thread_id(),
            Some(conch_net::affinity::current_thread_id())
        );
        link.note_starving(false);
        assert_eq!(link.weight(), 0);
    }

    #[test]
    fn every_heartbeat_wakes_the_shard() {
        let (link, _receiver) = ShardHandle::new();
        let count = Arc::new(WakeCount::default());
        link.set_pump_waker(&Waker::from(Arc::clone(&count)));
        assert!(link.send_heartbeat(), "the first is sent");
        assert!(
            !link.send_heartbeat() && !link.send_heartbeat(),
            "none was answered"
        );
        assert_eq!(count.get(), 3);
        link.answer(0);
        assert!(link.send_heartbeat());
        assert_eq!(count.get(), 4);
    }
}
