//! Locks by model: operations on one model run one after the other, others at once.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The names that operations hold.
#[derive(Default)]
pub(super) struct ModelLocks {
    state: Mutex<ModelLocksState>,
    changed: Condvar,
}

#[derive(Default)]
struct ModelLocksState {
    busy: BTreeSet<String>,
    /// An operation on all models waits or runs.
    is_exclusive: bool,
    is_closed: bool,
}

/// The right to change some models, given back on drop.
pub(super) struct ModelLock<'t> {
    locks: &'t ModelLocks,
    /// All models if none.
    names: Option<BTreeSet<String>>,
}

/// No operation may begin any more.
#[derive(Debug)]
pub(super) struct LocksClosed;

impl ModelLocks {
    /// Waits until nobody changes any of `names`.
    ///
    /// # Errors
    /// [`LocksClosed`].
    pub(super) fn acquire(&self, names: BTreeSet<String>) -> Result<ModelLock<'_>, LocksClosed> {
        let mut state = self.wait(|state| state.is_exclusive || !state.busy.is_disjoint(&names))?;
        state.busy.extend(names.iter().cloned());
        Ok(ModelLock {
            locks: self,
            names: Some(names),
        })
    }

    /// [`ModelLocks::acquire`] without waiting; none if it would have to, or no operation may begin
    /// any more.
    pub(super) fn try_acquire(&self, names: BTreeSet<String>) -> Option<ModelLock<'_>> {
        let mut state = self.lock();
        if state.is_closed || state.is_exclusive || !state.busy.is_disjoint(&names) {
            return None;
        }
        state.busy.extend(names.iter().cloned());
        Some(ModelLock {
            locks: self,
            names: Some(names),
        })
    }

    /// Waits until nobody changes any model at all.
    ///
    /// # Errors
    /// [`LocksClosed`].
    pub(super) fn acquire_all(&self) -> Result<ModelLock<'_>, LocksClosed> {
        let mut state = self.wait(|state| state.is_exclusive)?;
        // From here on nobody else begins.
        state.is_exclusive = true;
        let lock = ModelLock {
            locks: self,
            names: None,
        };
        drop(state);
        drop(self.wait(|state| !state.busy.is_empty())?);
        Ok(lock)
    }

    /// Lets no more operations begin, and waits for those that run until `deadline`. Returns
    /// whether all have ended.
    pub(super) fn close(&self, deadline: Instant) -> bool {
        let mut state = self.lock();
        state.is_closed = true;
        self.changed.notify_all();
        loop {
            if state.busy.is_empty() && !state.is_exclusive {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn wait(
        &self,
        must_wait: impl Fn(&ModelLocksState) -> bool,
    ) -> Result<MutexGuard<'_, ModelLocksState>, LocksClosed> {
        let waited = self
            .changed
            .wait_while(self.lock(), |state| !state.is_closed && must_wait(state));
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Err(LocksClosed);
        }
        Ok(state)
    }

    fn lock(&self) -> MutexGuard<'_, ModelLocksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ModelLock<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.lock();
        match &self.names {
            Some(names) => state.busy.retain(|name| !names.contains(name)),
            None => state.is_exclusive = false,
        }
        drop(state);
        self.locks.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_what_overlaps_waits() {
        let locks = ModelLocks::default();
        let (event_sender, events) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = locks.acquire(names(&["a", "b"])).unwrap();
            let _other = locks.acquire(names(&["c"])).unwrap();
            let sender = event_sender.clone();
            let locks = &locks;
            scope.spawn(move || {
                let _turn = locks.acquire(names(&["b", "d"])).unwrap();
                sender.send("second").unwrap();
            });
            assert!(events.recv_timeout(Duration::from_millis(30)).is_err());
            drop(first);
            assert_eq!(events.recv_timeout(Duration::from_secs(20)), Ok("second"));
        });
    }

    #[test]
    fn one_for_all_waits_for_all_and_holds_all_up() {
        let locks = ModelLocks::default();
        let running = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for index in 0..8 {
                let (locks, running) = (&locks, &running);
                scope.spawn(move || {
                    for _ in 0..50 {
                        if index % 4 == 0 {
                            let _turn = locks.acquire_all().unwrap();
                            assert_eq!(running.fetch_add(100, Ordering::SeqCst), 0);
                            running.fetch_sub(100, Ordering::SeqCst);
                        } else {
                            let _turn = locks.acquire(names(&[&index.to_string()])).unwrap();
                            assert!(running.fetch_add(1, Ordering::SeqCst) < 100);
                            running.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn after_the_close_nobody_begins() {
        let locks = ModelLocks::default();
        let lock = locks.acquire(names(&["a"])).unwrap();
        assert!(!locks.close(Instant::now() + Duration::from_millis(10)));
        assert!(locks.acquire(names(&["b"])).is_err() && locks.acquire_all().is_err());
        drop(lock);
        assert!(locks.close(Instant::now()));
    }
}
