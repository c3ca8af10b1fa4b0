//! Work that may take minutes (loading a model), on a thread of its own while a shard goes on.
//!
//! The offload threads would not do: one load would hold up every large request of the shard behind
//! it. The work goes on to its end even if nobody waits for it any more, as it does upstream.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use conch_engine::Error;
use conch_engine::threads::loader_placement::LoaderPlacement;

/// Pieces of work at once in the process. Most of them wait for others that change the same model;
/// a flood of them must not become a flood of threads.
const THREADS_MAX: usize = 256;
static THREAD_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The outcome of a piece of work. Dropping it ends the waiting, not the work.
pub(crate) struct BlockingTask<T> {
    shared: Arc<Mutex<BlockingShared<T>>>,
}

struct BlockingShared<T> {
    outcome: Option<Result<T, Error>>,
    waker: Option<Waker>,
}

/// Counts a thread while it lives.
struct ThreadPermit;

impl ThreadPermit {
    fn take() -> Option<ThreadPermit> {
        let count = THREAD_COUNT.fetch_add(1, Ordering::Relaxed);
        let permit = ThreadPermit;
        (count < THREADS_MAX).then_some(permit)
    }
}

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        THREAD_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts `work` on a thread at `placement`. A panic in it is an INTERNAL error.
///
/// # Errors
/// UNAVAILABLE if too much of it is under way already, or no thread is to be had.
pub(crate) fn blocking<T: Send + 'static>(
    placement: &LoaderPlacement,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<BlockingTask<T>, Error> {
    let permit = ThreadPermit::take().ok_or_else(|| {
        Error::unavailable("the server has too many requests for model control in flight")
    })?;
    let shared = Arc::new(Mutex::new(BlockingShared {
        outcome: None,
        waker: None,
    }));
    let own = Arc::clone(&shared);
    let placement = placement.clone();
    let run = move || {
        // It inherits the one CPU of its shard, and would pass it on to what a model starts.
        placement.apply();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(Error::internal("internal error")));
        drop(permit);
        let waker = {
            let mut shared = lock(&own);
            shared.outcome = Some(outcome);
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(run)
        .map_err(|cause| Error::unavailable(format!("cannot start a thread: {cause}")))?;
    Ok(BlockingTask { shared })
}

impl<T> Future for BlockingTask<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut shared = lock(&self.shared);
        if let Some(outcome) = shared.outcome.take() {
            return Poll::Ready(outcome);
        }
        shared.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

fn lock<T>(shared: &Mutex<BlockingShared<T>>) -> MutexGuard<'_, BlockingShared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;

    fn here() -> LoaderPlacement {
        LoaderPlacement::default()
    }

    /// The bound is the process's: a flood would refuse the other test's work as well.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[test]
    fn work_ends_with_its_outcome_whatever_it_is() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(block_on(blocking(&here(), || Ok(7)).unwrap()), Ok(7));
        let failed = block_on(blocking(&here(), || Err::<(), _>(Error::invalid("no"))).unwrap());
        assert_eq!(failed, Err(Error::invalid("no")));
        let panicked =
            block_on(blocking(&here(), || -> Result<(), Error> { panic!("on purpose") }).unwrap());
        assert_eq!(panicked, Err(Error::internal("internal error")));
    }

    #[test]
    fn a_flood_is_refused_and_leaves_no_trace() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let admission = Arc::new(Mutex::new(()));
        let closed = admission.lock().unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            let admission = Arc::clone(&admission);
            match blocking(&here(), move || {
                drop(admission.lock());
                Ok(())
            }) {
                Ok(blocking) => waiting.push(blocking),
                Err(error) => break error,
            }
        };
        assert_eq!(
            refused,
            Error::unavailable("the server has too many requests for model control in flight")
        );
        assert!(waiting.len() <= THREADS_MAX);
        drop(closed);
        for blocking in waiting {
            assert_eq!(block_on(blocking), Ok(()));
        }
        assert_eq!(block_on(blocking(&here(), || Ok(1)).unwrap()), Ok(1));
    }
}
