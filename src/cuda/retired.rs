//! Memory that nobody uses, on its way to the thread that frees it. Its drop is what frees it.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Takes memory that nobody uses. Copies take it for the same thread.
#[derive(Debug)]
pub struct RetiredQueue<T> {
    sender: Sender<T>,
    progress: Arc<ReclaimProgress>,
}

/// The end of a [`RetiredQueue`] where memory is freed.
#[derive(Debug)]
pub struct Reclaimer<T> {
    receiver: Receiver<T>,
    progress: Arc<ReclaimProgress>,
}

#[derive(Debug, Default)]
struct ReclaimProgress {
    counts: Mutex<ReclaimCounts>,
    is_freed: Condvar,
}

/// Since the queue was made. It is freed in the order in which it comes.
#[derive(Clone, Copy, Debug, Default)]
struct ReclaimCounts {
    retired: u64,
    freed: u64,
}

impl<T> Clone for RetiredQueue<T> {
    fn clone(&self) -> RetiredQueue<T> {
        RetiredQueue {
            sender: self.sender.clone(),
            progress: Arc::clone(&self.progress),
        }
    }
}

impl<T> RetiredQueue<T> {
    pub fn new() -> (RetiredQueue<T>, Reclaimer<T>) {
        let (sender, receiver) = mpsc::channel();
        let progress = Arc::<ReclaimProgress>::default();
        let memory = Reclaimer {
            receiver,
            progress: Arc::clone(&progress),
        };
        (RetiredQueue { sender, progress }, memory)
    }

    /// Has `memory` freed by the thread at the other end, or here if there is none any more.
    pub(crate) fn retire(&self, memory: T) {
        self.progress.lock().retired += 1;
        if let Err(left) = self.sender.send(memory) {
            drop(left);
            self.progress.note_freed();
        }
    }

    /// Waits until what was retired before the call is freed, `limit` at most. Whether any of it
    /// was freed meanwhile, so that an allocation which failed is worth another try.
    pub fn wait_until_freed(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut counts = self.progress.lock();
        let begin = *counts;
        while counts.freed < begin.retired {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.progress.is_freed.wait_timeout(counts, left);
            counts = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        counts.freed > begin.freed
    }
}

impl<T> Reclaimer<T> {
    /// Frees what comes until the last [`RetiredQueue`] is gone. Blocks in the driver.
    pub fn run(self) {
        while self.free_next() {}
    }

    fn free_next(&self) -> bool {
        let Ok(memory) = self.receiver.recv() else {
            return false;
        };
        drop(memory);
        self.progress.note_freed();
        true
    }
}

impl ReclaimProgress {
    fn lock(&self) -> MutexGuard<'_, ReclaimCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_freed(&self) {
        self.lock().freed += 1;
        self.is_freed.notify_all();
    }
}

#[cfg(test)]
impl<T> Reclaimer<T> {
    /// Frees one, if there is one.
    pub(crate) fn free_one(&self) -> bool {
        let Ok(memory) = self.receiver.try_recv() else {
            return false;
        };
        drop(memory);
        self.progress.note_freed();
        true
    }
}
