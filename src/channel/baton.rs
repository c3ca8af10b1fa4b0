//! A lock that nobody waits for: who fails to take it asks the holder to look again.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicU8, Ordering, UnsafeCell};

const FREE: u8 = 0;
const HELD: u8 = 1;
/// Held, and someone wanted it meanwhile.
const WANTED: u8 = 2;

/// Guards a value that one thread at a time may drive.
#[derive(Debug)]
pub struct Baton<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through `Held`, of which at most one exists.
unsafe impl<T: Send> Sync for Baton<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Baton<T> {}

impl<T> Baton<T> {
    pub fn new(value: T) -> Baton<T> {
        Baton {
            state: AtomicU8::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the baton. If another holds it: none, and its [`Held::release`] will say that the baton was wanted.
    pub fn try_take(&self) -> Option<Held<'_, T>> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (next, is_taken) = if state == FREE {
                (HELD, true)
            } else {
                (WANTED, false)
            };
            // Acquire: the value as the last holder left it. Release: the holder that sees WANTED sees what we did before.
            match self
                .state
                .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) if is_taken => {
                    return Some(Held {
                        baton: self,
                        value: PhantomData,
                    });
                }
                Ok(_) => return None,
                Err(seen) => state = seen,
            }
        }
    }
}

/// The baton in hand. Dropping it (in a panic) releases it without an answer.
///
/// It is `Send` and `Sync` as the value is, while the [`Baton`] is `Sync` for every value that may be sent:
///
/// ```compile_fail,E0277
/// fn assert_sync<T: Sync>() {}
/// assert_sync::<conch_channel::Held<'static, std::cell::Cell<u32>>>();
/// ```
pub struct Held<'a, T> {
    baton: &'a Baton<T>,
    value: PhantomData<&'a mut T>,
}

impl<T> Held<'_, T> {
    /// Gives the baton back; says whether another wanted it meanwhile, whose errand is then the caller's.
    pub fn release(self) -> bool {
        let baton = self.baton;
        std::mem::forget(self);
        baton.state.swap(FREE, Ordering::AcqRel) == WANTED
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.baton.state.store(FREE, Ordering::Release);
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the holder is alone, and shared borrows of `self` only read.
        self.baton.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the holder is alone and `self` is borrowed mutably.
        self.baton.value.with_mut(|value| unsafe { &mut *value })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_holder_learns_that_others_came() {
        let baton = Baton::new(1);
        let mut held = baton.try_take().unwrap();
        *held += 1;
        assert!(baton.try_take().is_none() && baton.try_take().is_none());
        assert!(held.release());
        let held = baton.try_take().unwrap();
        assert_eq!(*held, 2);
        assert!(!held.release());
        drop(baton.try_take());
        assert!(baton.try_take().is_some(), "dropping releases");
    }
}
