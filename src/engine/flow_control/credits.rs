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

use conch_memory::{Budget, CLIENT_FACTOR, ClientCounters, ClientId};

use crate::clock::monotonic_ns;
use crate::flow_control::payment::{Pace, Payment};
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
/// The backlogs of all requests may hold a quarter of the byte budget, that of one request a
/// sixteenth: neither keeps others from memory. Of the quarter a client may hold as many times what
/// is free as of the byte budget itself.
const BACKLOG_SHARE: u64 = 4;
const REQUEST_SHARE: u64 = 16;
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

/// Where the count begins in the word; the bytes are below.
const COUNT_SHIFT: u32 = 40;
const BYTES_MASK: u64 = (1 << COUNT_SHIFT) - 1;

/// The responses of all streams of a server that wait for their readers beyond their requests'
/// credits.
#[derive(Debug)]
pub struct StreamBacklog {
    patience: Duration,
    bytes_max: u64,
    request_bytes_max: u64,
    held_bytes: AtomicU64,
    clients: ClientCounters,
}

impl StreamBacklog {
    /// A backlog of readers that are given up after `patience`, within a byte budget of
    /// `limit_bytes`.
    pub fn new(patience: Duration, limit_bytes: u64) -> Arc<StreamBacklog> {
        Arc::new(StreamBacklog {
            patience,
            bytes_max: limit_bytes / BACKLOG_SHARE,
            request_bytes_max: (limit_bytes / REQUEST_SHARE).min(BYTES_MASK / 4),
            held_bytes: AtomicU64::new(0),
            clients: ClientCounters::default(),
        })
    }

    /// Adds `bytes` on behalf of `client`, if there is room for them.
    fn take(&self, client: Option<ClientId>, bytes: u64) -> bool {
        let taken = self
            .held_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|sum| *sum <= self.bytes_max)
            });
        let Ok(held_before) = taken else {
            return false;
        };
        let Some(client) = client else { return true };
        let free_bytes = self.bytes_max - held_before - bytes;
        if self.clients.add(client, bytes) <= free_bytes.saturating_mul(CLIENT_FACTOR) {
            return true;
        }
        self.give_back(Some(client), bytes);
        false
    }

    fn give_back(&self, client: Option<ClientId>, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(client) = client {
            self.clients.sub(client, bytes);
        }
    }
}

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
    pace: Option<Arc<dyn Pace>>,
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
        pace: Option<Arc<dyn Pace>>,
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
            pace,
        }
    }

    /// Those of a request whose responses may wait in `backlog`, on behalf of the client that
    /// `budget` is charged for.
    pub fn new(backlog: &Arc<StreamBacklog>, budget: &Budget) -> Credits {
        let backlog = Some(Arc::clone(backlog));
        Credits::with(backlog, budget.charged_client(), None)
    }

    /// Those of a step of an ensemble.
    pub(crate) fn of_step(pace: Arc<dyn Pace>) -> Credits {
        Credits::with(None, None, Some(pace))
    }

    /// Pays for a response with `bytes` of outputs. Waits while there is room neither in the
    /// credits nor in the backlog: not for shards.
    pub fn pay(&self, bytes: u64) -> Payment {
        if let Some(pace) = &self.pace {
            return self.note(pace.pay());
        }
        self.widen_hold(bytes);
        self.wait_until(|| self.try_take(bytes), || self.try_take_excess(bytes))
    }

    /// [`Credits::pay`] for nothing: waits until something could be paid.
    pub(crate) fn await_room(&self) -> Payment {
        if let Some(pace) = &self.pace {
            return self.note(pace.await_room());
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
                self.give_back_excess(SMALL_RESPONSE_BYTES);
            }
            has_room
        };
        self.wait_until(has_room, has_excess_room)
    }

    /// The reader behind a step was too slow: so is the step.
    fn note(&self, payment: Payment) -> Payment {
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
        if let Some(pace) = &self.pace {
            return pace.count();
        }
        if !self.try_take(bytes) && !self.try_take_excess(bytes) {
            self.add(bytes);
        }
    }

    fn add(&self, bytes: u64) {
        let bytes = bytes.min(BYTES_MASK / 4);
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
            backlog.give_back(self.client, bytes);
        }
        taken.is_ok()
    }

    /// Gives back up to `bytes` of what is in the backlog.
    fn give_back_excess(&self, bytes: u64) {
        let Some(backlog) = &self.backlog else {
            return;
        };
        let before = self
            .excess_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                Some(held.saturating_sub(bytes))
            });
        let given_bytes = before.map_or(0, |held| held.min(bytes));
        backlog.give_back(self.client, given_bytes);
    }

    fn try_take(&self, bytes: u64) -> bool {
        let bytes = bytes.min(BYTES_MASK / 4);
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
        if self.pace.is_some() {
            return;
        }
        let bytes = bytes.min(BYTES_MASK / 4);
        self.word
            .fetch_sub(1 << COUNT_SHIFT | bytes, Ordering::Relaxed);
        if self.excess_bytes.load(Ordering::Relaxed) != 0 {
            self.give_back_excess(excess_of(bytes));
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
        self.give_back_excess(u64::MAX);
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
                "the request was cancelled: its responses were read too slowly, {COUNT_MAX} of them or {BYTES_MAX} bytes waited for too long"
            ),
        )
    }
}

impl Drop for Credits {
    fn drop(&mut self) {
        self.give_back_excess(u64::MAX);
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
        bytes.clamp(RESPONSE_BYTES_MIN, BYTES_MASK / 4)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use conch_memory::Holder;

    use super::*;

    #[test]
    fn a_reader_that_reads_nothing_is_given_up_in_time() {
        let credits = Credits::default();
        for _ in 0..COUNT_MAX {
            assert_eq!(credits.pay(4), Payment::Made);
        }
        let start = Instant::now();
        assert_eq!(credits.pay(4), Payment::Refused);
        let waited = start.elapsed();
        assert!(waited >= HOLD_MAX, "{waited:?}");
        // For good, and at once.
        (0..COUNT_MAX).for_each(|_| credits.refund(4));
        assert_eq!(credits.pay(4), Payment::Refused);
        assert!(credits.is_overdrawn());
    }

    const LONG: Duration = Duration::from_secs(3_600);

    /// How many small responses are sent for a reader that reads nothing, before one is refused.
    fn sent_count(credits: &Credits) -> u64 {
        let sent = (0..1_000_000).find(|_| credits.pay(4) != Payment::Made);
        sent.expect("one is refused")
    }

    #[test]
    fn one_client_leaves_room_in_the_backlog_for_others() {
        let budget = Budget::new(1 << 30);
        let holder = Arc::<Holder>::default();
        let share = |name: &[u8]| budget.share(&holder, budget.client(name));
        // Names with different counters: of a few, two share one in a server of hundreds.
        let one = share(b"one");
        let other = (0..9u8)
            .map(|number| share(&[number]))
            .find(|other| other.charged_client() != one.charged_client())
            .unwrap();
        let backlog = StreamBacklog::new(LONG, 4 * 90 * SMALL_RESPONSE_BYTES);
        let wait_count = |credits: &[Credits]| -> usize {
            let waits = |credits: &Credits| {
                (0..1000)
                    .take_while(|_| credits.take_excess(SMALL_RESPONSE_BYTES))
                    .count()
            };
            credits.iter().map(waits).sum()
        };
        let requests = |budget: &Budget| -> Vec<Credits> {
            (0..20).map(|_| Credits::new(&backlog, budget)).collect()
        };
        let (hog, late) = (requests(&one), requests(&other));
        assert_eq!(wait_count(&hog), 80, "8/9");
        assert_eq!(wait_count(&late), 8, "8/9 of what is left");
        assert_eq!(wait_count(&hog), 0);
        drop(hog);
        assert_eq!(wait_count(&late), 72);
        drop(late);
        assert_eq!(backlog.held_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(wait_count(&requests(&one)), 80);
    }

    #[test]
    fn responses_beyond_the_credits_wait_in_the_backlog() {
        let budget = &Budget::new(1 << 30);
        let small = StreamBacklog::new(LONG, 64 * SMALL_RESPONSE_BYTES);
        let credits = Credits::new(&small, budget);
        // A sixteenth of the budget, and the sender waits no longer than it may.
        assert_eq!(sent_count(&credits), COUNT_MAX + 4);
        assert_eq!(
            small.held_bytes.load(Ordering::Relaxed),
            4 * SMALL_RESPONSE_BYTES
        );
        // What is read frees it first.
        credits.refund(4);
        assert_eq!(
            small.held_bytes.load(Ordering::Relaxed),
            3 * SMALL_RESPONSE_BYTES
        );
        // All together have a quarter.
        let all: Vec<Credits> = (0..8).map(|_| Credits::new(&small, budget)).collect();
        for credits in &all {
            for _ in 0..COUNT_MAX + 4 {
                assert!(
                    credits.try_take(4) || credits.try_take_excess(4) || {
                        small.held_bytes.load(Ordering::Relaxed) == small.bytes_max
                    }
                );
            }
        }
        assert_eq!(
            small.held_bytes.load(Ordering::Relaxed),
            16 * SMALL_RESPONSE_BYTES
        );
        all[0].close();
        assert_eq!(
            small.held_bytes.load(Ordering::Relaxed),
            12 * SMALL_RESPONSE_BYTES
        );
        drop((all, credits));
        assert_eq!(small.held_bytes.load(Ordering::Relaxed), 0);
        // However much memory there is, the count stays in its word.
        let large = StreamBacklog::new(LONG, u64::MAX);
        let credits = Credits::new(&large, budget);
        for _ in 0..BACKLOG_COUNT_MAX {
            assert!(credits.try_take(4) || credits.try_take_excess(4));
        }
        assert!(!credits.try_take(4) && !credits.try_take_excess(4));
        (0..BACKLOG_COUNT_MAX).for_each(|_| credits.refund(4));
        assert!(credits.is_unused());
        assert_eq!(large.held_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_reader_that_pauses_for_longer_than_the_patience_is_given_up() {
        let budget = &Budget::new(1 << 30);
        let backlog = StreamBacklog::new(Duration::ZERO, u64::MAX);
        assert_eq!(sent_count(&Credits::new(&backlog, budget)), COUNT_MAX);
        let backlog = StreamBacklog::new(Duration::from_millis(20), u64::MAX);
        let credits = Credits::new(&backlog, budget);
        let since = |credits: &Credits| credits.stalled_since_ns.load(Ordering::Relaxed);
        (0..COUNT_MAX).for_each(|_| assert_eq!(credits.pay(4), Payment::Made));
        assert_eq!(since(&credits), 0, "it is not behind");
        assert!(!credits.is_stalled());
        assert_ne!(since(&credits), 0);
        // Whatever it reads, it begins anew.
        std::thread::sleep(Duration::from_millis(30));
        credits.refund(4);
        assert_eq!(since(&credits), 0);
        assert_eq!(credits.pay(4), Payment::Made);
        assert!(!credits.is_stalled());
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(credits.pay(4), Payment::Refused);
        assert_eq!(credits.pay(4), Payment::Refused, "for good");
    }

    /// The reader of one response gives back what a sender of another took. Sums that overflow
    /// panic in the profiles of tests.
    #[test]
    fn senders_and_readers_of_one_request_never_give_back_too_much() {
        let budget = Budget::new(1 << 30);
        let share = budget.share(&Arc::<Holder>::default(), budget.client(b"one"));
        let backlog = StreamBacklog::new(LONG, REQUEST_SHARE * 8 * SMALL_RESPONSE_BYTES);
        let credits = Credits::new(&backlog, &share);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut taken_count = 0;
                while taken_count < 300_000 {
                    taken_count += u32::from(credits.take_excess(SMALL_RESPONSE_BYTES));
                }
            });
            while !sender.is_finished() {
                credits.give_back_excess(SMALL_RESPONSE_BYTES);
            }
        });
        let held = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(held(&backlog.held_bytes), held(&credits.excess_bytes));
        drop(credits);
        assert_eq!(held(&backlog.held_bytes), 0);
    }

    #[test]
    fn bytes_are_bounded_but_one_response_always_fits() {
        let credits = Credits::default();
        assert!(credits.try_take(BYTES_MAX * 4));
        assert!(!credits.try_take(1));
        credits.refund(BYTES_MAX * 4);
        assert!(credits.try_take(BYTES_MAX - 1) && credits.try_take(1));
        assert!(!credits.try_take(1));
        credits.refund(1);
        assert!(credits.try_take(1));
    }

    #[test]
    fn a_slow_reader_that_goes_on_is_waited_for() {
        let credits = Arc::new(Credits::default());
        let reader = Arc::clone(&credits);
        let count = COUNT_MAX + 1_500;
        let reading = std::thread::spawn(move || {
            // About 900 per second for two seconds, which is longer than the patience.
            let mut left_count = count;
            while left_count > 0 {
                std::thread::sleep(Duration::from_millis(10));
                let taken_count = left_count
                    .min(9)
                    .min(reader.word.load(Ordering::Relaxed) >> COUNT_SHIFT);
                (0..taken_count).for_each(|_| reader.refund(4));
                left_count -= taken_count;
            }
        });
        for index in 0..count {
            assert_eq!(credits.pay(4), Payment::Made, "response {index}");
        }
        reading.join().unwrap();
    }

    #[test]
    fn large_responses_may_take_their_time() {
        const LARGE: u64 = 200_000_000;
        let credits = Arc::new(Credits::default());
        let reader = Arc::clone(&credits);
        assert_eq!(credits.pay(LARGE), Payment::Made);
        let reading = std::thread::spawn(move || {
            // More than 16 MB per second, but longer for one than a small response is waited for.
            for _ in 0..2 {
                std::thread::sleep(HOLD_MAX + HOLD_MAX / 4);
                reader.refund(LARGE);
            }
        });
        assert_eq!(credits.pay(LARGE), Payment::Made);
        assert_eq!(credits.pay(LARGE), Payment::Made);
        reading.join().unwrap();
        let left_ns = credits.hold_ns.load(Ordering::Relaxed);
        assert!(left_ns <= credits.hold_max_ns.load(Ordering::Relaxed));
        assert_eq!(earned_ns(u64::MAX), PATIENCE.as_nanos() as i64);
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let credits = Arc::new(Credits::default());
        (0..COUNT_MAX).for_each(|_| assert_eq!(credits.pay(4), Payment::Made));
        let reader = Arc::clone(&credits);
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            reader.close();
        });
        let start = Instant::now();
        assert_eq!(credits.pay(4), Payment::Unwanted);
        assert!(start.elapsed() < HOLD_MAX);
        leaving.join().unwrap();
        assert!(!credits.is_overdrawn());
    }
}
