//! A try-lock with a contended mark: a thread that fails to lock leaves the mark, and the holder
//! sees it when it unlocks.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::primitives::{AtomicU8, Ordering, UnsafeCell};

const FREE: u8 = 0;
const HELD: u8 = 1;
/// Held, and another thread wanted it meanwhile.
const WANTED: u8 = 2;

/// Guards a value that one thread at a time may use. No thread waits for it.
#[derive(Debug)]
pub struct TryLock<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through `TryLockGuard`, of which at most one exists.
unsafe impl<T: Send> Sync for TryLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for TryLock<T> {}

impl<T> TryLock<T> {
    pub fn new(value: T) -> TryLock<T> {
        TryLock {
            state: AtomicU8::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks. None if another thread holds the lock; its [`TryLockGuard::release`] then returns
    /// true.
    pub fn try_lock(&self) -> Option<TryLockGuard<'_, T>> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (next, is_taken) = if state == FREE {
                (HELD, true)
            } else {
                (WANTED, false)
            };
            // Acquire: the value as the last holder left it. Release: the holder that sees WANTED
            // sees what we did before.
            match self
                .state
                .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) if is_taken => {
                    return Some(TryLockGuard {
                        lock: self,
                        value: PhantomData,
                    });
                }
                Ok(_) => return None,
                Err(seen) => state = seen,
            }
        }
    }
}

/// The locked value. Dropping it, as a panic does, unlocks without reporting contention.
///
/// It is `Send` and `Sync` as the value is, while the [`TryLock`] is `Sync` for every value that
/// may be sent:
///
/// ```compile_fail,E0277
/// fn assert_sync<T: Sync>() {}
/// assert_sync::<conch_sync::TryLockGuard<'static, std::cell::Cell<u32>>>();
/// ```
pub struct TryLockGuard<'a, T> {
    lock: &'a TryLock<T>,
    value: PhantomData<&'a mut T>,
}

impl<T> TryLockGuard<'_, T> {
    /// Unlocks. Returns whether another thread failed to lock meanwhile: the caller must then look
    /// again for it.
    pub fn release(self) -> bool {
        let lock = self.lock;
        std::mem::forget(self);
        lock.state.swap(FREE, Ordering::AcqRel) == WANTED
    }
}

impl<T> Drop for TryLockGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.state.store(FREE, Ordering::Release);
    }
}

impl<T> Deref for TryLockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the holder is alone, and shared borrows of `self` only read.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for TryLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the holder is alone and `self` is borrowed mutably.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn release_reports_contention() {
        let lock = TryLock::new(1);
        let mut guard = lock.try_lock().unwrap();
        *guard += 1;
        assert!(lock.try_lock().is_none() && lock.try_lock().is_none());
        assert!(guard.release());
        let guard = lock.try_lock().unwrap();
        assert_eq!(*guard, 2);
        assert!(!guard.release());
        drop(lock.try_lock());
        assert!(lock.try_lock().is_some(), "dropping releases");
    }
}
