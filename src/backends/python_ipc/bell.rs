//! Waiting for another process: a word in shared memory that counts rings.

use std::time::Duration;

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The longest wait before the waiter looks at its condition again. The other side may write the
/// word back that a ring has changed, and so undo the ring; nobody waits for good because of that.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// What a thread waits on. Its count changes with every ring, so that a ring between a look at the
/// condition and the wait is not lost: take the [`count`](Bell::count), look, then wait for another
/// count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell<'s> {
    word: &'s AtomicU32,
}

impl<'s> Bell<'s> {
    pub(crate) fn new(word: &'s AtomicU32) -> Bell<'s> {
        Bell { word }
    }

    pub(crate) fn count(self) -> u32 {
        // Acquire: who sees a ring sees what was written before it.
        self.word.load(Ordering::Acquire)
    }

    /// Wakes whoever waits.
    pub(crate) fn ring(self) {
        self.word.fetch_add(1, Ordering::AcqRel);
        wake(self.word);
    }

    /// Blocks until the count is not `seen`, at most for `timeout`. May return early: after some
    /// seconds, it does.
    pub(crate) fn wait(self, seen: u32, timeout: Option<Duration>) {
        let timeout = timeout.map_or(WAIT_MAX, |timeout| timeout.min(WAIT_MAX));
        wait(self.word, seen, Some(timeout));
    }
}

/// Blocks while `word` is `value`, at most for `timeout`. May return early.
#[cfg(not(loom))]
pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    use rustix::thread::futex;
    let timeout = timeout.and_then(|timeout| rustix::fs::Timespec::try_from(timeout).ok());
    // Another value, a signal and the end of the time are all the same: the caller looks again.
    let _ = futex::wait(word, futex::Flags::empty(), value, timeout.as_ref());
}

/// Wakes every thread that waits on the word.
#[cfg(not(loom))]
pub(crate) fn wake(word: &AtomicU32) {
    use rustix::thread::futex;
    let _ = futex::wake(
        word,
        futex::Flags::empty(),
        u32::try_from(i32::MAX).unwrap_or(1),
    );
}

#[cfg(loom)]
pub(crate) use model::{wait, wake};

/// Futexes under loom: a wake that nobody waits for is lost, so that a model which misses one does
/// not end.
#[cfg(loom)]
mod model {
    use super::*;

    loom::lazy_static! {
        static ref WAITERS: (loom::sync::Mutex<()>, loom::sync::Condvar) =
            (loom::sync::Mutex::new(()), loom::sync::Condvar::new());
    }

    pub(crate) fn wait(word: &AtomicU32, value: u32, _timeout: Option<Duration>) {
        let waiting = WAITERS.0.lock().unwrap();
        if word.load(Ordering::SeqCst) == value {
            drop(WAITERS.1.wait(waiting).unwrap());
        }
    }

    pub(crate) fn wake(_word: &AtomicU32) {
        let _waiting = WAITERS.0.lock().unwrap();
        WAITERS.1.notify_all();
    }
}
