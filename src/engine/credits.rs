//! What a request of a decoupled model may have on its way to a reader: so many responses, so many bytes.
//!
//! A decoupled model may answer without end, and faster than its reader reads. Each response but the final one is paid for by whoever
//! sends it, and paid back when the reader's connection has taken it. Out of credit the sender waits, on the backend's thread: that is
//! how a model learns that it is too fast. But one thread of a backend often serves many requests, so a reader may hold it up for a bounded time
//! only: its patience, which each response that is read restores a little. When that is gone the request is cancelled, and of what the
//! model sends for it afterwards only the end is passed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::monotonic_ns;
use crate::ensemble::Pace;
use crate::{Code, Error};

/// Responses on their way. With a small output each holds about 65 KiB of the byte budget: 16 MiB.
pub const COUNT_MAX: u64 = 256;
/// Bytes of their outputs. One response may be larger, alone.
pub const BYTES_MAX: u64 = 16 << 20;
/// How long senders may wait for a reader that reads nothing.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// What a response that was read gives back of it: who reads 500 per second is never too slow,
const PER_RESPONSE_NS: u64 = 2_000_000;
/// nor who reads 16 MB per second.
const PER_BYTE_NS: u64 = 60;
/// A sender that waits looks this often. Nobody wakes it: that would be a system call per response for the shard, which meanwhile has
/// [`COUNT_MAX`] responses to write.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Where the count begins in the word; the bytes are below.
const COUNT_SHIFT: u32 = 48;
const BYTES_MASK: u64 = (1 << COUNT_SHIFT) - 1;

/// The credits of one request.
#[derive(Debug)]
pub struct Credits {
    /// What is on its way: count and bytes.
    word: AtomicU64,
    patience_ns: AtomicI64,
    is_overdrawn: AtomicBool,
    is_closed: AtomicBool,
    /// Of a step of an ensemble: there is no reader, but the steps behind it, which set the pace.
    pace: Option<Arc<Pace>>,
}

/// What became of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payment {
    /// The response may leave.
    Made,
    /// The reader was too slow for too long: the request is to be cancelled, its response dropped.
    Refused,
    /// Nobody reads any more: drop the response.
    Unwanted,
}

impl Default for Credits {
    fn default() -> Credits {
        Credits {
            word: AtomicU64::new(0),
            patience_ns: AtomicI64::new(PATIENCE.as_nanos() as i64),
            is_overdrawn: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            pace: None,
        }
    }
}

impl Credits {
    /// Those of a step of an ensemble.
    pub(crate) fn of_step(pace: Arc<Pace>) -> Credits {
        Credits {
            pace: Some(pace),
            ..Credits::default()
        }
    }

    /// Pays for a response with `bytes` of outputs. Waits while there is no credit and the reader has patience left: not for shards.
    pub fn pay(&self, bytes: u64) -> Payment {
        if let Some(pace) = &self.pace {
            return self.note(pace.pay());
        }
        self.wait_until(|| self.try_take(bytes))
    }

    /// [`Credits::pay`] for nothing: waits until something could be paid.
    pub(crate) fn await_room(&self) -> Payment {
        if let Some(pace) = &self.pace {
            return self.note(pace.await_room());
        }
        self.wait_until(|| {
            let word = self.word.load(Ordering::Relaxed);
            let (count, held) = (word >> COUNT_SHIFT, word & BYTES_MASK);
            count == 0 || (count < COUNT_MAX && held <= BYTES_MAX)
        })
    }

    /// The reader behind a step was too slow: so is the step.
    fn note(&self, payment: Payment) -> Payment {
        if payment == Payment::Refused {
            self.is_overdrawn.store(true, Ordering::Relaxed);
        }
        payment
    }

    fn wait_until(&self, has_room: impl Fn() -> bool) -> Payment {
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
            let start_ns = monotonic_ns();
            std::thread::sleep(LOOK_INTERVAL);
            let waited_ns = monotonic_ns().saturating_sub(start_ns).cast_signed();
            // Relaxed, here and below: counters that order nothing; responses travel by way of mailboxes.
            if self.patience_ns.fetch_sub(waited_ns, Ordering::Relaxed) <= waited_ns {
                self.is_overdrawn.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Pays whatever there is, without waiting: for who made its sources wait.
    pub(crate) fn charge(&self, bytes: u64) {
        if let Some(pace) = &self.pace {
            return pace.count();
        }
        let bytes = bytes.min(BYTES_MASK / 2);
        self.word
            .fetch_add(1 << COUNT_SHIFT | bytes, Ordering::Relaxed);
    }

    fn try_take(&self, bytes: u64) -> bool {
        let bytes = bytes.min(BYTES_MASK / 2);
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
        let bytes = bytes.min(BYTES_MASK / 2);
        self.word
            .fetch_sub(1 << COUNT_SHIFT | bytes, Ordering::Relaxed);
        let earned_ns = PER_RESPONSE_NS.max(bytes.saturating_mul(PER_BYTE_NS));
        let patience_ns = PATIENCE.as_nanos() as i64;
        let earned_ns = earned_ns.cast_signed().min(patience_ns);
        // Never fails: the closure always has a value.
        let _ = self
            .patience_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left_ns| {
                Some((left_ns + earned_ns).min(patience_ns))
            });
    }

    /// Nobody reads any more: who waits need not, and who comes later pays nothing.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

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
        assert!((PATIENCE..PATIENCE * 2).contains(&waited), "{waited:?}");
        // For good, and at once.
        (0..COUNT_MAX).for_each(|_| credits.refund(4));
        let start = Instant::now();
        assert_eq!(credits.pay(4), Payment::Refused);
        assert!(start.elapsed() < PATIENCE / 2);
        assert!(credits.is_overdrawn());
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
        assert!(start.elapsed() < PATIENCE / 2);
        leaving.join().unwrap();
        assert!(!credits.is_overdrawn());
    }
}
