//! Credits bound the responses of a decoupled request that are on their way to a reader, by count
//! and bytes.
//!
//! A decoupled model may answer without end, and faster than its reader reads. Each response but
//! the final one is paid for by its sender, and paid back when the reader's connection has taken
//! it.
//!
//! - Within the credits a response leaves at once.
//! - Beyond them it waits for the reader in the server's [`StreamBacklog`], and the sender goes on.
//!   A reader that takes nothing for the stream patience (`--stream-patience-ms`) meanwhile is
//!   given up.
//! - When the backlog is full the sender waits, on the backend's thread: that is how a model learns
//!   that it is too fast. One thread of a backend often serves many requests, so a reader may hold
//!   it up for a second in all, or for as long as one response takes at 16 MB per second; each
//!   response that is read restores a little of that.
//!
//! A request whose reader is given up is cancelled, and of what the model sends for it afterwards
//! only the end is passed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use conch_memory::{Budget, ClientId};

use crate::clock::monotonic_ns;
use crate::flow_control::backlog::{COUNT_SHIFT, REQUEST_BYTES_MAX, StreamBacklog};
use crate::flow_control::payment::{Payment, StepFlow};
use crate::{Code, Error};

/// Responses on their way.
pub const COUNT_MAX: u64 = 256;
/// Bytes of their outputs. One response may be larger, alone.
pub const BYTES_MAX: u64 = 16 << 20;
/// How long senders may wait for a reader, beyond the backlog; longer while responses are so large
/// that a reader who is never too slow takes longer for one.
pub const HOLD_MAX: Duration = Duration::from_secs(1);
/// How long a reader may take nothing, by default, while responses wait beyond its credits.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Outputs up to this size, so many of a response, are not charged to the byte budget: of a
/// decoupled model they are bounded here.
pub const SMALL_OUTPUT_BYTES: u64 = 512;
pub const SMALL_OUTPUT_COUNT: usize = 8;
/// What a response with such outputs takes of the backlog, with all that belongs to it.
const SMALL_RESPONSE_BYTES: u64 = 2 << 10;
/// What any other takes at least: a step of the byte budget, and the same.
const RESPONSE_BYTES_MIN: u64 = 66 << 10;
/// Of one request: far less than the word's count can hold, as several threads may look at it at
/// the same time.
const BACKLOG_COUNT_MAX: u64 = 1 << 20;
/// What a response that was read gives back of it: who reads 500 per second is never too slow,
const PER_RESPONSE_NS: u64 = 2_000_000;
/// nor who reads 16 MB per second.
const PER_BYTE_NS: u64 = 60;
/// A sender that waits looks this often. Nobody wakes it: that would be a system call per response
/// for the shard, which meanwhile has [`COUNT_MAX`] responses to write.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The bytes in the word, below the count.
const BYTES_MASK: u64 = (1 << COUNT_SHIFT) - 1;

/// The credits of one request.
#[derive(Debug)]
pub struct Credits {
    /// What is on its way: count and bytes.
    word: AtomicU64,
    /// The part of it that is in the backlog.
    excess_bytes: AtomicU64,
    backlog: Option<Arc<StreamBacklog>>,
    /// On whose behalf it waits there. None: nobody's.
    client: Option<ClientId>,
    /// When the reader was first found to be behind since it read last; 0: it is not behind.
    stalled_since_ns: AtomicU64,
    /// What is left of the time that senders may wait.
    hold_ns: AtomicI64,
    /// The most that may be left of it: what the largest response so far takes to be read, at least
    /// [`HOLD_MAX`].
    hold_max_ns: AtomicI64,
    is_overdrawn: AtomicBool,
    is_closed: AtomicBool,
    /// Of a step of an ensemble: there is no reader, but the steps behind it, which set the pace.
    flow: Option<Arc<dyn StepFlow>>,
}

impl Default for Credits {
    fn default() -> Credits {
        Credits::with(None, None, None)
    }
}

impl Credits {
    fn with(
        backlog: Option<Arc<StreamBacklog>>,
        client: Option<ClientId>,
        flow: Option<Arc<dyn StepFlow>>,
    ) -> Credits {
        Credits {
            word: AtomicU64::new(0),
            excess_bytes: AtomicU64::new(0),
            backlog,
            client,
            stalled_since_ns: AtomicU64::new(0),
            hold_ns: AtomicI64::new(HOLD_MAX.as_nanos() as i64),
            hold_max_ns: AtomicI64::new(HOLD_MAX.as_nanos() as i64),
            is_overdrawn: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            flow,
        }
    }

    /// Those of a request whose responses may wait in `backlog`, on behalf of the client that
    /// `budget` is charged for.
    pub fn new(backlog: &Arc<StreamBacklog>, budget: &Budget) -> Credits {
        let backlog = Some(Arc::clone(backlog));
        Credits::with(backlog, budget.charged_client(), None)
    }

    /// Those of a step of an ensemble.
    pub(crate) fn of_step(flow: Arc<dyn StepFlow>) -> Credits {
        Credits::with(None, None, Some(flow))
    }

    /// Pays for a response with `bytes` of outputs. Waits while there is room neither in the
    /// credits nor in the backlog: not for shards.
    pub fn pay(&self, bytes: u64) -> Payment {
        if let Some(flow) = &self.flow {
            return self.record_refusal(flow.pay());
        }
        self.widen_hold(bytes);
        self.wait_until(|| self.try_take(bytes), || self.try_take_excess(bytes))
    }

    /// [`Credits::pay`] for nothing: waits until something could be paid.
    pub(crate) fn await_room(&self) -> Payment {
        if let Some(flow) = &self.flow {
            return self.record_refusal(flow.await_room());
        }
        let has_room = || {
            let word = self.word.load(Ordering::Relaxed);
            let (count, held) = (word >> COUNT_SHIFT, word & BYTES_MASK);
            count == 0 || (count < COUNT_MAX && held <= BYTES_MAX)
        };
        let has_excess_room = || {
            // What it takes is not known yet.
            let has_room = self.take_excess(SMALL_RESPONSE_BYTES);
            if has_room {
                self.uncharge_excess(SMALL_RESPONSE_BYTES);
            }
            has_room
        };
        self.wait_until(has_room, has_excess_room)
    }

    /// The reader behind a step was too slow: so is the step.
    fn record_refusal(&self, payment: Payment) -> Payment {
        if payment == Payment::Refused {
            self.is_overdrawn.store(true, Ordering::Relaxed);
        }
        payment
    }

    fn wait_until(
        &self,
        has_room: impl Fn() -> bool,
        has_excess_room: impl Fn() -> bool,
    ) -> Payment {
        loop {
            if self.is_closed.load(Ordering::Relaxed) {
                return Payment::Unwanted;
            }
            if self.is_overdrawn() {
                return Payment::Refused;
            }
            if has_room() {
                return Payment::Made;
            }
            if self.is_stalled() {
                self.is_overdrawn.store(true, Ordering::Relaxed);
                continue;
            }
            if has_excess_room() {
                return Payment::Made;
            }
            let start_ns = monotonic_ns();
            std::thread::sleep(LOOK_INTERVAL);
            let waited_ns = monotonic_ns().saturating_sub(start_ns).cast_signed();
            // Relaxed, here and below: counters that order nothing; responses travel by way of
            // mailboxes.
            if self.hold_ns.fetch_sub(waited_ns, Ordering::Relaxed) <= waited_ns {
                self.is_overdrawn.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Allows senders the time that a reader takes for a response with `bytes` of outputs.
    fn widen_hold(&self, bytes: u64) {
        let needed_ns = earned_ns(bytes);
        if needed_ns <= HOLD_MAX.as_nanos() as i64 {
            return;
        }
        let before_ns = self.hold_max_ns.fetch_max(needed_ns, Ordering::Relaxed);
        if needed_ns > before_ns {
            self.hold_ns
                .fetch_add(needed_ns - before_ns, Ordering::Relaxed);
        }
    }

    /// Whether the reader, which is behind, has read nothing for its patience.
    fn is_stalled(&self) -> bool {
        let Some(backlog) = &self.backlog else {
            return false;
        };
        let now_ns = monotonic_ns().max(1);
        let since =
            self.stalled_since_ns
                .compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
        let since_ns = since.err().unwrap_or(now_ns);
        u128::from(now_ns.saturating_sub(since_ns)) >= backlog.patience.as_nanos()
    }

    /// Pays whatever there is, without waiting: for who made its sources wait.
    pub(crate) fn charge(&self, bytes: u64) {
        if let Some(flow) = &self.flow {
            return flow.count();
        }
        if !self.try_take(bytes) && !self.try_take_excess(bytes) {
            self.add(bytes);
        }
    }

    fn add(&self, bytes: u64) {
        let bytes = bytes.min(REQUEST_BYTES_MAX);
        self.word
            .fetch_add(1 << COUNT_SHIFT | bytes, Ordering::Relaxed);
    }

    fn try_take_excess(&self, bytes: u64) -> bool {
        let has_room = self.take_excess(excess_of(bytes));
        if has_room {
            self.add(bytes);
        }
        has_room
    }

    fn take_excess(&self, bytes: u64) -> bool {
        let Some(backlog) = &self.backlog else {
            return false;
        };
        if self.word.load(Ordering::Relaxed) >> COUNT_SHIFT >= BACKLOG_COUNT_MAX {
            return false;
        }
        let fits = |held: u64| {
            let sum = held.checked_add(bytes);
            sum.filter(|sum| *sum <= backlog.request_bytes_max)
        };
        if fits(self.excess_bytes.load(Ordering::Relaxed)).is_none()
            || !backlog.take(self.client, bytes)
        {
            return false;
        }
        // Only now, when the backlog holds them: the reader of an earlier response gives back what
        // it finds here.
        let taken = self
            .excess_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if taken.is_err() {
            backlog.uncharge(self.client, bytes);
        }
        taken.is_ok()
    }

    /// Gives back up to `bytes` of what is in the backlog.
    fn uncharge_excess(&self, bytes: u64) {
        let Some(backlog) = &self.backlog else {
            return;
        };
        let before = self
            .excess_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                Some(held.saturating_sub(bytes))
            });
        let given_bytes = before.map_or(0, |held| held.min(bytes));
        backlog.uncharge(self.client, given_bytes);
    }

    fn try_take(&self, bytes: u64) -> bool {
        let bytes = bytes.min(REQUEST_BYTES_MAX);
        let taken = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                let (count, held) = (word >> COUNT_SHIFT, word & BYTES_MASK);
                let has_room = count == 0 || (count < COUNT_MAX && held + bytes <= BYTES_MAX);
                has_room.then(|| (count + 1) << COUNT_SHIFT | (held + bytes))
            });
        taken.is_ok()
    }

    /// Pays back what was paid for a response with `bytes` of outputs: it is read.
    pub fn refund(&self, bytes: u64) {
        if self.flow.is_some() {
            return;
        }
        let bytes = bytes.min(REQUEST_BYTES_MAX);
        self.word
            .fetch_sub(1 << COUNT_SHIFT | bytes, Ordering::Relaxed);
        if self.excess_bytes.load(Ordering::Relaxed) != 0 {
            self.uncharge_excess(excess_of(bytes));
        }
        if self.stalled_since_ns.load(Ordering::Relaxed) != 0 {
            self.stalled_since_ns.store(0, Ordering::Relaxed);
        }
        let earned_ns = earned_ns(bytes);
        let hold_max_ns = self.hold_max_ns.load(Ordering::Relaxed);
        // Never fails: the closure always has a value.
        let _ = self
            .hold_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left_ns| {
                Some((left_ns + earned_ns).min(hold_max_ns))
            });
    }

    /// Nobody reads any more: who waits need not, and who comes later pays nothing.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.uncharge_excess(u64::MAX);
    }

    /// Whether nothing is on its way.
    pub fn is_unused(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0
    }

    /// Whether a payment was ever refused.
    pub fn is_overdrawn(&self) -> bool {
        self.is_overdrawn.load(Ordering::Relaxed)
    }

    /// What the client of an overdrawn request is told at its end.
    pub fn too_slow() -> Error {
        Error::new(
            Code::Cancelled,
            format!(
                "the request was cancelled: its responses were read too slowly, {COUNT_MAX} of \
                 them or {BYTES_MAX} bytes waited for too long"
            ),
        )
    }
}

impl Drop for Credits {
    fn drop(&mut self) {
        self.uncharge_excess(u64::MAX);
    }
}

/// What a response with `bytes` of outputs gives back of the hold when it is read: no more than the
/// patience.
fn earned_ns(bytes: u64) -> i64 {
    PER_RESPONSE_NS
        .max(bytes.saturating_mul(PER_BYTE_NS))
        .min(PATIENCE.as_nanos() as u64)
        .cast_signed()
}

/// What a response with `bytes` of outputs is in the backlog.
fn excess_of(bytes: u64) -> u64 {
    if bytes <= SMALL_OUTPUT_BYTES {
        SMALL_RESPONSE_BYTES
    } else {
        bytes.clamp(RESPONSE_BYTES_MIN, REQUEST_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests;
