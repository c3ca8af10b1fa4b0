//! One request that waits for its model.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::Demand;
use crate::{Error, Reservation};

/// A lease, or none if the loaded model has no place for the request.
pub(super) type Outcome = Result<Option<Reservation>, Error>;

/// Yields a lease of the model once it is loaded, or why it is not. Dropping it ends the waiting, not the load.
pub struct Call {
    demand: Arc<Demand>,
    shared: Arc<Shared>,
}

/// What the thread that loads has of it.
pub(super) struct Shared {
    pub(super) version: Option<i64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// Nobody waits any more.
    is_over: bool,
}

impl Call {
    pub(super) fn new(demand: &Arc<Demand>, version: Option<i64>) -> (Call, Arc<Shared>) {
        let shared = Arc::new(Shared {
            version,
            state: Mutex::default(),
        });
        let call = Call {
            demand: Arc::clone(demand),
            shared: Arc::clone(&shared),
        };
        (call, shared)
    }
}

impl Future for Call {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.shared.lock();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // A lease that nobody took goes with it.
        let unread = {
            let mut state = self.shared.lock();
            state.is_over = true;
            state.outcome.take()
        };
        drop(unread);
        self.demand.lock().waiting_count -= 1;
    }
}

impl Shared {
    /// Whether somebody still waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.lock().is_over
    }

    pub(super) fn settle(&self, outcome: Outcome) {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}
