//! One thread that calls back at deadlines which nobody else watches: of schedulers while every
//! core of their model executes, and of requests that have no shard.
//!
//! The thread starts with the first deadline and sleeps until the earliest. Callbacks must be short
//! and must not block.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conch_net::affinity;

use crate::clock::monotonic_ns;

type Callback = Box<dyn FnOnce(u64) + Send>;

/// Calls back at given times. Dropping it ends the thread; what is still pending is never called.
#[derive(Default)]
pub struct TimerThread {
    shared: Arc<TimerShared>,
}

#[derive(Default)]
struct TimerShared {
    agenda: Mutex<TimerQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerQueue {
    /// By time and number of arrival.
    pending: BTreeMap<TimerId, Callback>,
    count: u64,
    is_running: bool,
    is_ending: bool,
}

/// Names one pending callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerId {
    deadline_ns: u64,
    number: u64,
}

impl TimerThread {
    /// Has `callback` called with the time when `deadline_ns` (monotonic) has come. Takes a lock
    /// that is held for moments only.
    pub fn call_at(
        &self,
        deadline_ns: u64,
        callback: impl FnOnce(u64) + Send + 'static,
    ) -> TimerId {
        let mut agenda = self.shared.lock();
        agenda.count += 1;
        let timer_id = TimerId {
            deadline_ns,
            number: agenda.count,
        };
        agenda.pending.insert(timer_id, Box::new(callback));
        if !agenda.is_running {
            self.start_thread(&mut agenda);
        } else if agenda
            .pending
            .first_key_value()
            .is_some_and(|(first, _)| *first == timer_id)
        {
            self.shared.changed.notify_one();
        }
        timer_id
    }

    /// Starts the thread, which is else started for the first deadline: by a thread that need not
    /// be one that gives way then, as the new one would, too.
    pub fn start(&self) {
        let mut agenda = self.shared.lock();
        if !agenda.is_running {
            self.start_thread(&mut agenda);
        }
    }

    fn start_thread(&self, agenda: &mut TimerQueue) {
        let shared = Arc::clone(&self.shared);
        let started = std::thread::Builder::new()
            .name("timer".into())
            .spawn(move || shared.run());
        match started {
            Ok(_) => agenda.is_running = true,
            // Tried again with the next deadline; until then deadlines are late, not lost.
            Err(error) => conch_log::error!("cannot start the timer thread: {error}"),
        }
    }

    /// Withdraws a callback; false if it was called or is being called.
    pub fn cancel(&self, timer_id: TimerId) -> bool {
        self.shared.lock().pending.remove(&timer_id).is_some()
    }
}

impl Drop for TimerThread {
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_one();
    }
}

impl TimerShared {
    fn lock(&self) -> MutexGuard<'_, TimerQueue> {
        // Callbacks run outside the lock, so a poisoned agenda is whole.
        self.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // Not where its first caller happens to be: that may be the core of one GPU. What the
        // system refuses is left as it is.
        if let Ok(cpus) = affinity::process_cpus() {
            let _ = affinity::confine_current_thread(&cpus);
        }
        let mut agenda = self.lock();
        while !agenda.is_ending {
            let now_ns = monotonic_ns();
            match agenda.pending.first_entry() {
                Some(first) if first.key().deadline_ns <= now_ns => {
                    let callback = first.remove();
                    drop(agenda);
                    let called =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| callback(now_ns)));
                    if called.is_err() {
                        conch_log::error!("a callback of the timer thread panicked");
                    }
                    agenda = self.lock();
                }
                Some(first) => {
                    let wait = Duration::from_nanos(first.key().deadline_ns - now_ns);
                    agenda = self
                        .changed
                        .wait_timeout(agenda, wait)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
                None => {
                    agenda = self
                        .changed
                        .wait(agenda)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }
}

impl fmt::Debug for TimerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerThread")
            .field("pending", &self.shared.lock().pending.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn calls_in_order_of_time_and_never_early() {
        let timer_thread = TimerThread::default();
        let (sender, receiver) = mpsc::channel();
        let start_ns = monotonic_ns();
        let at = |offset_ms: u64| {
            let sender = sender.clone();
            let deadline_ns = start_ns + offset_ms * 1_000_000;
            timer_thread.call_at(deadline_ns, move |now_ns| {
                assert!(now_ns >= deadline_ns);
                sender.send(offset_ms).unwrap();
            })
        };
        at(30);
        let withdrawn = at(20);
        at(10);
        timer_thread.call_at(start_ns, |_| {
            panic!("one callback's panic is not the others' end")
        });
        assert!(timer_thread.cancel(withdrawn) && !timer_thread.cancel(withdrawn));
        let received: Vec<u64> = (0..2)
            .map(|_| receiver.recv_timeout(Duration::from_secs(10)).unwrap())
            .collect();
        assert_eq!(received, [10, 30]);
    }
}
