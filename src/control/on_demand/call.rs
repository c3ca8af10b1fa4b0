//! One request that waits for its model.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use conch_engine::{Error, InFlightPermit};

/// A permit, or none if the loaded model has no place for the request.
pub(super) type PermitOutcome = Result<Option<InFlightPermit>, Error>;

/// Yields a permit of the model once it is loaded, or why it is not. Dropping it ends the waiting,
/// not the load.
pub struct LoadFuture {
    /// Requests that wait for any model, this one among them.
    waiting_count: Arc<AtomicUsize>,
    shared: Arc<LoadShared>,
}

/// What the thread that loads has of it.
pub(super) struct LoadShared {
    pub(super) version: Option<i64>,
    state: Mutex<LoadState>,
}

#[derive(Default)]
struct LoadState {
    outcome: Option<PermitOutcome>,
    waker: Option<Waker>,
    /// Nobody waits any more.
    is_over: bool,
}

impl LoadFuture {
    /// Counts in `waiting_count` until it is dropped.
    pub(super) fn new(
        waiting_count: &Arc<AtomicUsize>,
        version: Option<i64>,
    ) -> (LoadFuture, Arc<LoadShared>) {
        waiting_count.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(LoadShared {
            version,
            state: Mutex::default(),
        });
        let call = LoadFuture {
            waiting_count: Arc::clone(waiting_count),
            shared: Arc::clone(&shared),
        };
        (call, shared)
    }
}

impl Future for LoadFuture {
    type Output = PermitOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PermitOutcome> {
        let mut state = self.shared.lock();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for LoadFuture {
    fn drop(&mut self) {
        // A permit that nobody took goes with it.
        let unread = {
            let mut state = self.shared.lock();
            state.is_over = true;
            state.outcome.take()
        };
        drop(unread);
        self.waiting_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LoadShared {
    /// Whether somebody still waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.lock().is_over
    }

    /// Wakes the request with `outcome`, if it still waits.
    pub(super) fn complete(&self, outcome: PermitOutcome) {
        let waker = {
            let mut state = self.lock();
            if state.is_over {
                return;
            }
            state.outcome = Some(outcome);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LoadFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}
