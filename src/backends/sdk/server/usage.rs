//! Who uses a server: bounds the use of its address to the life of the model.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Code, Error};

/// How long the end of a model waits for its calls, once they are cancelled. Models are to notice
/// that within a step of theirs. Those that do not are left to themselves: nothing of the model is
/// theirs any more.
const CALLS_WAIT: Duration = Duration::from_secs(10);

/// How often the server is in use through one model.
///
/// A function of the server is used between [`enter`](Self::enter) and the drop of its guard; a
/// call is in flight between [`begin_call`](Self::begin_call) and the drop of its guard.
#[derive(Debug, Default)]
pub(super) struct Usage {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    is_closed: bool,
    uses: usize,
    calls: usize,
    /// Threads that wait for a change. Each use ends with a look at this in place of a system call.
    waiters: usize,
}

impl Usage {
    /// Begins the use of a function of the server.
    ///
    /// # Errors
    /// `Unavailable` if the model has ended.
    pub(super) fn enter(self: &Arc<Self>) -> Result<UseGuard, Error> {
        let mut counts = self.lock();
        if counts.is_closed {
            return Err(Error::new(
                Code::Unavailable,
                "the server is used through a model that is not loaded any more",
            ));
        }
        counts.uses += 1;
        Ok(UseGuard(Arc::clone(self)))
    }

    /// Begins a call.
    pub(super) fn begin_call(self: &Arc<Self>) -> CallGuard {
        self.lock().calls += 1;
        CallGuard(Arc::clone(self))
    }

    /// Ends all use: waits for functions that are in use, has `cancel` end the calls in flight, and
    /// waits for these, but not for ever. Returns how many calls are left.
    pub(super) fn close(&self, cancel: impl FnOnce()) -> usize {
        let mut counts = self.lock();
        counts.is_closed = true;
        while counts.uses > 0 {
            counts = self.wait(counts, CALLS_WAIT);
        }
        if counts.calls == 0 {
            return 0;
        }
        drop(counts);
        cancel();
        self.wait_for_calls(CALLS_WAIT)
    }

    fn wait_for_calls(&self, limit: Duration) -> usize {
        let begun = Instant::now();
        let mut counts = self.lock();
        while counts.calls > 0 {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            counts = self.wait(counts, left);
        }
        counts.calls
    }

    fn wait<'l>(
        &self,
        mut counts: MutexGuard<'l, Counts>,
        limit: Duration,
    ) -> MutexGuard<'l, Counts> {
        counts.waiters += 1;
        let waited = self.changed.wait_timeout(counts, limit);
        let mut counts = waited.unwrap_or_else(PoisonError::into_inner).0;
        counts.waiters -= 1;
        counts
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.lock();
        change(&mut counts);
        if counts.waiters > 0 {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A function of the server is in use.
#[derive(Debug)]
pub(super) struct UseGuard(Arc<Usage>);

impl Drop for UseGuard {
    fn drop(&mut self) {
        self.0.change(|counts| counts.uses -= 1);
    }
}

/// A call is in flight.
#[derive(Debug)]
pub(super) struct CallGuard(Arc<Usage>);

impl CallGuard {
    /// Whether the call is one through `usage`.
    pub(super) fn is_of(&self, usage: &Arc<Usage>) -> bool {
        Arc::ptr_eq(&self.0, usage)
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.change(|counts| counts.calls -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn the_end_refuses_waits_and_cancels() {
        let usage = Arc::new(Usage::default());
        let (inside, call) = (usage.enter().unwrap(), usage.begin_call());
        let (sender, cancelled) = mpsc::channel();
        let closing = Arc::clone(&usage);
        let thread = thread::spawn(move || closing.close(|| sender.send(()).unwrap()));
        while usage.enter().is_ok() {
            thread::yield_now();
        }
        let error = usage.enter().unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(cancelled.try_recv().is_err(), "a function is in use");
        drop(inside);
        cancelled.recv().unwrap();
        drop(call);
        assert_eq!(thread.join().unwrap(), 0);
    }

    #[test]
    fn calls_that_do_not_end_are_left() {
        let usage = Arc::new(Usage::default());
        let (first, second) = (usage.begin_call(), usage.begin_call());
        assert!(first.is_of(&usage) && !first.is_of(&Arc::default()));
        drop(first);
        assert_eq!(usage.wait_for_calls(Duration::from_millis(1)), 1);
        drop(second);
        assert_eq!(usage.close(|| panic!("there are none")), 0);
    }
}
