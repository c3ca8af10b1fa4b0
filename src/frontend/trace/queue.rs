//! From the threads that end traces to the one that writes or exports them.
//!
//! Bounded in traces (or the spans that they make) and in bytes of tensors. What does not fit is
//! left out and counted: a trace is worth less than a request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use conch_log as log;

/// Traces that wait to be written into files.
const TRACES_MAX: usize = 16_384;
/// Bytes of tensors in traces that are not written yet. Their text may take several times as much,
/// one trace after the other.
const TENSOR_BYTES_MAX: u64 = 32 << 20;

/// Where traces go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TraceTarget {
    /// Nothing can be traced, and nobody takes anything out.
    Nowhere,
    /// The file of that path.
    File(String),
    /// A collector of spans, which takes them in batches.
    Collector {
        spans_max: usize,
        batch_spans_max: usize,
    },
}

/// A message to the thread that writes; `R` is the record of a trace.
pub(super) enum TraceMessage<R> {
    /// With the spans that it makes; 1 for a file.
    Trace(Box<R>, usize),
    /// No further trace comes under the setting with this number.
    Over(u64),
    /// Close everything and end.
    End,
}

/// Messages that wait for the thread that writes.
pub(super) struct TraceQueue<R> {
    target: TraceTarget,
    waiting: Mutex<QueuedTraces<R>>,
    changed: Condvar,
    tensor_bytes: AtomicU64,
    lost_count: AtomicU64,
}

struct QueuedTraces<R> {
    messages: VecDeque<TraceMessage<R>>,
    /// Of the traces among them.
    weight: usize,
    has_ended: bool,
}

impl<R> TraceQueue<R> {
    pub(super) fn new(target: TraceTarget) -> TraceQueue<R> {
        TraceQueue {
            target,
            waiting: Mutex::new(QueuedTraces {
                messages: VecDeque::new(),
                weight: 0,
                has_ended: false,
            }),
            changed: Condvar::new(),
            tensor_bytes: AtomicU64::new(0),
            lost_count: AtomicU64::new(0),
        }
    }

    /// Empty where there is none.
    pub(super) fn file(&self) -> &str {
        match &self.target {
            TraceTarget::File(file) => file,
            TraceTarget::Nowhere | TraceTarget::Collector { .. } => "",
        }
    }

    pub(super) fn has_target(&self) -> bool {
        self.target != TraceTarget::Nowhere
    }

    pub(super) fn has_collector(&self) -> bool {
        matches!(self.target, TraceTarget::Collector { .. })
    }

    /// Takes a message in; a trace beyond the bound is lost. Does not block but for the time that
    /// others take to do the same.
    pub(super) fn push(&self, message: TraceMessage<R>) {
        let (weight_max, wakes_at, why) = match (&self.target, &message) {
            (TraceTarget::Nowhere, _) => return,
            // A collector knows no settings.
            (TraceTarget::Collector { .. }, TraceMessage::Over(_)) => return,
            (TraceTarget::File(_), _) => {
                (TRACES_MAX, 0, "traces come faster than they can be written")
            }
            (TraceTarget::Collector { spans_max, .. }, _) => (
                *spans_max,
                self.batch_weight(),
                "spans come faster than the collector takes them",
            ),
        };
        let mut waiting = self.lock();
        if waiting.has_ended {
            return;
        }
        if let TraceMessage::Trace(_, weight) = &message {
            // One that is larger than the bound by itself may wait alone.
            let weight = waiting.weight.saturating_add(*weight);
            if waiting.weight > 0 && weight > weight_max {
                drop(waiting);
                // It may be the last that knows its setting, which tells this queue when it goes.
                drop(message);
                self.note_loss(why);
                return;
            }
            waiting.weight = weight;
        }
        waiting.has_ended = matches!(message, TraceMessage::End);
        let wakes = waiting.has_ended || waiting.weight >= wakes_at;
        waiting.messages.push_back(message);
        drop(waiting);
        if wakes {
            self.changed.notify_one();
        }
    }

    /// Everything that waits; blocks until there is something.
    pub(super) fn take(&self) -> VecDeque<TraceMessage<R>> {
        let mut waiting = self.lock();
        while waiting.messages.is_empty() {
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        waiting.weight = 0;
        std::mem::take(&mut waiting.messages)
    }

    /// Blocks until a batch of spans waits, `until` has passed, or the end has come.
    pub(super) fn wait_for_batch(&self, until: Instant) {
        let weight = self.batch_weight();
        self.wait_until(until, |waiting| {
            waiting.has_ended || waiting.weight >= weight
        });
    }

    /// Blocks until the end has come, which it says, or `until` has passed.
    pub(super) fn wait_for_end(&self, until: Instant) -> bool {
        self.wait_until(until, |waiting| waiting.has_ended)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// The next trace that waits.
    pub(super) fn pop(&self) -> Option<Box<R>> {
        let mut waiting = self.lock();
        while let Some(message) = waiting.messages.pop_front() {
            if let TraceMessage::Trace(record, weight) = message {
                waiting.weight -= weight;
                return Some(record);
            }
        }
        None
    }

    /// From how many spans on they are exported at once. Half of what may wait is never left
    /// waiting, as upstream.
    fn batch_weight(&self) -> usize {
        match self.target {
            TraceTarget::Collector {
                spans_max,
                batch_spans_max,
            } => batch_spans_max.min(spans_max / 2).max(1),
            TraceTarget::Nowhere | TraceTarget::File(_) => 1,
        }
    }

    fn wait_until(&self, until: Instant, is_there: impl Fn(&QueuedTraces<R>) -> bool) -> bool {
        let mut waiting = self.lock();
        while !is_there(&waiting) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            waiting = self
                .changed
                .wait_timeout(waiting, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// Room for the bytes of a tensor; none if too many are kept already.
    pub(super) fn room(self: &Arc<TraceQueue<R>>, bytes: u64) -> Option<QueueRoom<R>> {
        let taken = self
            .tensor_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes)
                    .filter(|total| *total <= TENSOR_BYTES_MAX)
            });
        if taken.is_err() {
            self.note_loss("the tensors of traces take too much memory");
            return None;
        }
        Some(QueueRoom {
            queue: Arc::clone(self),
            bytes,
        })
    }

    /// Nothing waits that has not been taken out.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.lock().messages.is_empty()
    }

    /// Says so the first time, then ever more rarely.
    fn note_loss(&self, why: &str) {
        let count = self.lost_count.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            log::warning!("tracing is incomplete, {count} times until now: {why}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueuedTraces<R>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Given back on drop.
pub(super) struct QueueRoom<R> {
    queue: Arc<TraceQueue<R>>,
    bytes: u64,
}

impl<R> Drop for QueueRoom<R> {
    fn drop(&mut self) {
        self.queue
            .tensor_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn file() -> TraceQueue<()> {
        TraceQueue::new(TraceTarget::File("f".to_owned()))
    }

    fn collector(spans_max: usize, batch_spans_max: usize) -> TraceQueue<u32> {
        TraceQueue::new(TraceTarget::Collector {
            spans_max,
            batch_spans_max,
        })
    }

    fn popped(queue: &TraceQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop())
            .map(|record| *record)
            .collect()
    }

    #[test]
    fn tensors_have_a_bound() {
        let queue = Arc::new(file());
        let half = queue.room(TENSOR_BYTES_MAX / 2).unwrap();
        let rest = queue.room(TENSOR_BYTES_MAX / 2).unwrap();
        assert!(queue.room(1).is_none());
        drop(half);
        assert!(queue.room(1).is_some());
        drop(rest);
        assert_eq!(queue.tensor_bytes.load(Ordering::Relaxed), 0);
        assert!(queue.room(u64::MAX).is_none());
    }

    #[test]
    fn nothing_is_taken_in_without_a_target_or_after_the_end() {
        let queue = TraceQueue::<()>::new(TraceTarget::Nowhere);
        queue.push(TraceMessage::Over(1));
        assert!(queue.lock().messages.is_empty());
        let queue = file();
        queue.push(TraceMessage::Over(1));
        queue.push(TraceMessage::End);
        queue.push(TraceMessage::Over(2));
        assert_eq!(queue.take().len(), 2);
    }

    #[test]
    fn traces_for_a_file_have_a_bound() {
        let queue = file();
        for _ in 0..TRACES_MAX + 3 {
            queue.push(TraceMessage::Trace(Box::new(()), 1));
        }
        queue.push(TraceMessage::Over(1));
        assert_eq!(queue.lost_count.load(Ordering::Relaxed), 3);
        assert_eq!(queue.take().len(), TRACES_MAX + 1);
        queue.push(TraceMessage::Trace(Box::new(()), 1));
        assert_eq!(queue.take().len(), 1);
    }

    #[test]
    fn spans_for_a_collector_have_a_bound() {
        let queue = collector(10, 4);
        for (number, weight) in [(1, 3), (2, 4), (3, 4), (4, 3), (5, 1)] {
            queue.push(TraceMessage::Trace(Box::new(number), weight));
            queue.push(TraceMessage::Over(7));
        }
        assert_eq!(queue.lost_count.load(Ordering::Relaxed), 2);
        assert_eq!(queue.pop(), Some(Box::new(1)));
        queue.push(TraceMessage::Trace(Box::new(6), 3));
        queue.push(TraceMessage::Trace(Box::new(7), 1));
        assert_eq!(popped(&queue), [2, 4, 6]);
        // Larger than the bound: alone.
        queue.push(TraceMessage::Trace(Box::new(8), 11));
        queue.push(TraceMessage::Trace(Box::new(9), 1));
        assert_eq!(popped(&queue), [8]);
        assert_eq!(queue.lost_count.load(Ordering::Relaxed), 4);
        assert_eq!(queue.lock().weight, 0);
    }

    #[test]
    fn a_batch_is_waited_for() {
        for (spans_max, batch_spans_max, expected) in
            [(2_048, 512, 512), (100, 512, 50), (1, 512, 1), (10, 1, 1)]
        {
            let queue = collector(spans_max, batch_spans_max);
            assert_eq!(queue.batch_weight(), expected);
        }
        let queue = collector(100, 10);
        let past = Instant::now();
        // It would not end before: the test would.
        let never = past + Duration::from_secs(3_600);
        queue.push(TraceMessage::Trace(Box::new(1), 9));
        queue.wait_for_batch(past);
        assert!(!queue.wait_for_end(past));
        queue.push(TraceMessage::Trace(Box::new(2), 1));
        queue.wait_for_batch(never);
        assert_eq!(popped(&queue), [1, 2]);
        std::thread::scope(|scope| {
            scope.spawn(|| queue.push(TraceMessage::End));
            queue.wait_for_batch(never);
        });
        assert!(queue.wait_for_end(never) && queue.has_ended());
        queue.push(TraceMessage::Trace(Box::new(3), 1));
        assert_eq!(queue.pop(), None);
    }
}
