//! From the threads that end traces to the one that writes them.
//!
//! Bounded in traces and in bytes of tensors. What does not fit is left out and counted: a trace is
//! worth less than a request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use conch_log as log;

/// Traces that wait to be written.
const TRACES_MAX: usize = 16_384;
/// Bytes of tensors in traces that are not written yet. Their text may take several times as much,
/// one trace after the other.
const TENSOR_BYTES_MAX: u64 = 32 << 20;

/// A message to the thread that writes; `R` is the record of a trace.
pub(super) enum TraceMessage<R> {
    Trace(Box<R>),
    /// No further trace comes under the setting with this number.
    Over(u64),
    /// Close everything and end.
    End,
}

/// Messages that wait for the thread that writes.
pub(super) struct TraceQueue<R> {
    /// Empty: nothing can be traced, and nobody takes anything out.
    file: String,
    waiting: Mutex<QueuedTraces<R>>,
    changed: Condvar,
    tensor_bytes: AtomicU64,
    lost_count: AtomicU64,
}

struct QueuedTraces<R> {
    messages: VecDeque<TraceMessage<R>>,
    trace_count: usize,
    has_ended: bool,
}

impl<R> TraceQueue<R> {
    pub(super) fn new(file: &str) -> TraceQueue<R> {
        TraceQueue {
            file: file.to_owned(),
            waiting: Mutex::new(QueuedTraces {
                messages: VecDeque::new(),
                trace_count: 0,
                has_ended: false,
            }),
            changed: Condvar::new(),
            tensor_bytes: AtomicU64::new(0),
            lost_count: AtomicU64::new(0),
        }
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    pub(super) fn has_file(&self) -> bool {
        !self.file.is_empty()
    }

    /// Takes a message in; a trace beyond the bound is lost. Does not block but for the time that
    /// others take to do the same.
    pub(super) fn push(&self, message: TraceMessage<R>) {
        if !self.has_file() {
            return;
        }
        let mut waiting = self.lock();
        if waiting.has_ended {
            return;
        }
        if matches!(message, TraceMessage::Trace(_)) {
            if waiting.trace_count >= TRACES_MAX {
                drop(waiting);
                // It may be the last that knows its setting, which tells this queue when it goes.
                drop(message);
                self.note_loss("traces come faster than they can be written");
                return;
            }
            waiting.trace_count += 1;
        }
        waiting.has_ended = matches!(message, TraceMessage::End);
        waiting.messages.push_back(message);
        drop(waiting);
        self.changed.notify_one();
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
        waiting.trace_count = 0;
        std::mem::take(&mut waiting.messages)
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
    use super::*;

    #[test]
    fn tensors_have_a_bound() {
        let queue = Arc::new(TraceQueue::<()>::new("f"));
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
    fn nothing_is_taken_in_without_a_file_or_after_the_end() {
        let queue = TraceQueue::<()>::new("");
        queue.push(TraceMessage::Over(1));
        assert!(queue.lock().messages.is_empty());
        let queue = TraceQueue::<()>::new("f");
        queue.push(TraceMessage::Over(1));
        queue.push(TraceMessage::End);
        queue.push(TraceMessage::Over(2));
        assert_eq!(queue.take().len(), 2);
    }
}
