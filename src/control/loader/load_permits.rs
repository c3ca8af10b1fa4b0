//! Bounds the number of versions that load at a time.

use std::sync::{Condvar, Mutex, PoisonError};

/// How many versions may load at once, whoever loads them.
pub(super) struct LoadPermits {
    pub(super) thread_count: usize,
    pub(super) free: Mutex<usize>,
    pub(super) returned: Condvar,
}

impl LoadPermits {
    pub(super) fn new(thread_count: usize) -> LoadPermits {
        LoadPermits {
            thread_count: thread_count.max(1),
            free: Mutex::new(thread_count.max(1)),
            returned: Condvar::new(),
        }
    }

    pub(super) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.returned.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        let outcome = work();
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.returned.notify_one();
        outcome
    }
}
