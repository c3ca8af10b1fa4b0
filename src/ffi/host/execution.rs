//! The batch that this thread executes, so that answers released during Execute depart together.
//!
//! The one thread-local of this crate: RequestRelease has no parameter that leads to the running
//! batch.

use std::cell::Cell;
use std::ptr;

use conch_engine::{Delivery, PendingResponses, RequestContext};

thread_local! {
    static CURRENT: Cell<*mut CurrentBatch> = const { Cell::new(ptr::null_mut()) };
}

/// The batch that a thread is executing.
struct CurrentBatch {
    instance: u64,
    pending: *mut PendingResponses,
}

/// Runs `call` as the execution of a batch on `instance` (a number unique in the process).
pub(crate) fn run<R>(instance: u64, pending: &mut PendingResponses, call: impl FnOnce() -> R) -> R {
    /// Restores the outer execution also if `call` panics.
    struct Restore(*mut CurrentBatch);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let mut execution = CurrentBatch { instance, pending };
    let _restore = Restore(CURRENT.replace(&raw mut execution));
    call()
}

/// Whether this thread executes a batch on `instance`.
pub(crate) fn is_current(instance: u64) -> bool {
    // SAFETY: non-null only while `run` is on this thread's stack, and nobody else refers to the
    // value.
    unsafe { CURRENT.get().as_ref() }.is_some_and(|execution| execution.instance == instance)
}

/// Lets a delivery leave with the batch that this thread executes on `instance`; returns it if
/// there is none.
pub(crate) fn defer(
    instance: u64,
    origin: &RequestContext,
    delivery: Delivery,
) -> Option<Delivery> {
    if !is_current(instance) {
        return Some(delivery);
    }
    // SAFETY: as in `is_current`; `pending` is borrowed by `run` for as long, and used by no one
    // else meanwhile.
    let pending = unsafe { &mut *(*CURRENT.get()).pending };
    pending.push_delivery(origin, delivery);
    None
}
