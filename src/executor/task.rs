//! Tasks.

use std::future::Future;
use std::sync::Arc;

use crate::reactor::Reactor;

/// The handle of a task. A task whose handle is dropped is cancelled: its future is dropped in the
/// executor's next turn.
pub struct Task {
    inner: async_task::Task<()>,
}

/// Runs `future` on this thread's executor, from its next turn on.
///
/// # Panics
/// Outside of an executor.
pub fn spawn(future: impl Future<Output = ()> + 'static) -> Task {
    let schedule = Reactor::with(|reactor| Arc::clone(reactor.schedule()));
    let (runnable, inner) =
        async_task::spawn_local(future, move |runnable| schedule.push(runnable));
    runnable.schedule();
    Task { inner }
}

impl Task {
    /// Lets the task run to its end on its own.
    pub fn detach(self) {
        self.inner.detach();
    }

    /// Drops the future, and returns when that is done.
    pub async fn cancel(self) {
        self.inner.cancel().await;
    }
}
