//! The readiness hook of an instance, as its model's readiness prober sees it.
//!
//! Called on the readiness prober's thread, while the instance executes on its core or not. The
//! instance may be finalised by its core at any time; the gate keeps each from happening during the
//! other.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use conch_abi as abi;
use conch_engine::{Error, ReadinessCheck};

use crate::guard;

/// Asks one instance, as long as it is there.
pub(super) struct ReadinessHook {
    ready: abi::TRITONBACKEND_ModelInstanceReadyFn,
    /// The instance's handle until it goes. Atomic only because a plain pointer is not `Send`: the
    /// lock orders everything.
    admission: Mutex<Option<AtomicPtr<abi::TRITONBACKEND_ModelInstance>>>,
}

/// The instance's hold of its hook, which it lets go before it is finalised.
pub(super) struct HookGuard(Arc<ReadinessHook>);

impl HookGuard {
    /// `ready` is the hook of the instance's backend. The hook guard must be dropped before
    /// `instance` is.
    pub(super) fn on(
        ready: abi::TRITONBACKEND_ModelInstanceReadyFn,
        instance: *mut abi::TRITONBACKEND_ModelInstance,
    ) -> HookGuard {
        HookGuard(Arc::new(ReadinessHook {
            ready,
            admission: Mutex::new(Some(AtomicPtr::new(instance))),
        }))
    }

    pub(super) fn readiness_check(&self) -> Arc<dyn ReadinessCheck> {
        Arc::clone(&self.0) as Arc<dyn ReadinessCheck>
    }
}

impl Drop for HookGuard {
    /// Blocks as long as the hook is in the backend.
    fn drop(&mut self) {
        *self
            .0
            .admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl ReadinessCheck for ReadinessHook {
    fn check(&self) -> Result<(), Error> {
        // Held over the call: the instance must not be finalised during it.
        let admission = self
            .admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(handle) = &*admission else {
            return Err(Error::unavailable("the instance is being unloaded"));
        };
        // SAFETY: the entry point of this instance's backend, which stays open while its instances
        // live; the handle is that of the instance, which lives while the gate holds it.
        unsafe { guard::call1(self.ready, handle.load(Ordering::Relaxed)) }
    }
}
