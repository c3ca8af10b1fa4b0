//! Waiting for room under the limits of live requests.
//!
//! A request that would be one too many waits on its shard, for a time and in a number that are
//! bounded, and nothing behind it is read: the next request of an HTTP/1 connection or of a stream
//! stays in the socket's buffers; other calls of an HTTP/2 connection go on. So clients that are
//! many and quick get their turns without being refused, and the CPU goes into executions in place
//! of refusals. The future of a request that waits is in `shard/acquire.rs`.
//!
//! - `queue`: the requests that wait, by the limit that they wait for, in a fair order.
//! - `rate`: how fast a limit lets requests in, for those whose deadline would pass meanwhile.
//! - `neighbors`: shards that have waited longest, so that none keeps all room to itself.

mod neighbors;
mod queue;
mod rate;

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Waker;

use self::queue::AdmissionQueue;
pub(crate) use neighbors::WaitingShards;
pub(super) use queue::{LimitKey, QueuePosition};

/// The requests of one shard that wait for room. One per shard.
pub(super) struct Admission {
    queue: RefCell<AdmissionQueue>,
    neighbors: Arc<WaitingShards>,
    /// Of this shard, among `neighbors`.
    index: usize,
}

impl Admission {
    pub(super) fn new(count_max: usize, neighbors: Arc<WaitingShards>, index: usize) -> Admission {
        Admission {
            queue: RefCell::new(AdmissionQueue::new(count_max)),
            neighbors,
            index,
        }
    }

    /// Whether anybody waits.
    pub(super) fn has_any(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Whether anybody waits for `key`.
    pub(super) fn has(&self, key: LimitKey) -> bool {
        self.queue.borrow().has(key)
    }

    /// The position of a request of `connection` that waits for `key`, for `patience_ns` at most if
    /// its client has set a deadline; none if it is not to wait.
    pub(super) fn join(
        &self,
        connection: u64,
        key: LimitKey,
        patience_ns: Option<u64>,
    ) -> Option<QueuePosition> {
        self.queue.borrow_mut().join(connection, key, patience_ns)
    }

    /// Has the request at `position` wait for `key` since `since_ns`. Whether it is the first.
    pub(super) fn wait(
        &self,
        key: LimitKey,
        position: QueuePosition,
        waker: &Waker,
        since_ns: u64,
    ) -> bool {
        let before = self.queue.borrow_mut().wait(key, position, waker, since_ns);
        // The task of that waker may end with it, and use the queue.
        drop(before);
        self.show_oldest(key);
        self.is_first(key, position)
    }

    /// Whether nobody who waits for `key` is before `position`.
    pub(super) fn is_first(&self, key: LimitKey, position: QueuePosition) -> bool {
        self.queue.borrow().is_first(key, position)
    }

    /// A request that waited for `key` is about to be let in.
    pub(super) fn note_let_in(&self, key: LimitKey, position: QueuePosition, now_ns: u64) {
        self.queue.borrow_mut().note_let_in(key, position, now_ns);
    }

    /// Takes a request out of those that wait for `key`. If it was the first, the next one looks.
    pub(super) fn take_out(&self, key: LimitKey, position: QueuePosition) {
        let (own, next) = self.queue.borrow_mut().take_out(key, position);
        if let Some(next) = next {
            next.wake();
        }
        // As above.
        drop(own);
        self.show_oldest(key);
    }

    /// A request of `connection` waits no more.
    pub(super) fn leave(&self, connection: u64) {
        self.queue.borrow_mut().leave(connection);
    }

    /// Room for `count` requests may have come back: so many look who are first in each line. All
    /// in one turn, as one after the other would make batches of one.
    pub(super) fn wake_firsts(&self, count: usize) {
        if count == 0 || !self.has_any() {
            return;
        }
        let firsts = self.queue.borrow_mut().firsts(count);
        firsts.into_iter().for_each(Waker::wake);
    }

    /// How much longer a first is to wait between looks by its timer, as there are others.
    pub(super) fn look_factor(&self) -> u64 {
        self.queue.borrow().look_factor()
    }

    /// Whether another shard has waited for room in the server since before `since_ns`.
    pub(super) fn is_behind_neighbors(&self, since_ns: u64) -> bool {
        self.neighbors.has_older(self.index, since_ns)
    }

    /// Tells the other shards since when this one waits for room in the server.
    fn show_oldest(&self, key: LimitKey) {
        if key == LimitKey::SERVER {
            let since_ns = self.queue.borrow().waits_since(key);
            self.neighbors.show(self.index, since_ns);
        }
    }
}
