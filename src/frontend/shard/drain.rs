//! The beginning of a shard's end, and who waits for it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::slab::Slab;

/// Whether a shard drains. Every open gRPC connection waits for that, most for as long as they
/// live, and is polled for every request: a look costs the same however many wait, and who stops
/// waiting leaves nothing behind.
pub(super) struct DrainSignal {
    has_begun: Cell<bool>,
    waiting: RefCell<Slab<Waker>>,
}

/// Completes when the shard begins to drain. Dropping it ends the waiting.
pub struct DrainFuture<'a> {
    drain: &'a DrainSignal,
    /// Of its waker, once it waits.
    key: Option<u64>,
}

impl DrainSignal {
    pub(super) fn new() -> DrainSignal {
        DrainSignal {
            has_begun: Cell::new(false),
            waiting: RefCell::new(Slab::new()),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// Wakes everyone who waits.
    pub(super) fn begin(&self) {
        self.has_begun.set(true);
        // Taken out first: no borrow is held while foreign code (a waker's) runs.
        let waiting = self.waiting.borrow_mut().drain();
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(super) fn wait(&self) -> DrainFuture<'_> {
        DrainFuture {
            drain: self,
            key: None,
        }
    }
}

impl Future for DrainFuture<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.drain.has_begun() {
            return Poll::Ready(());
        }
        let mut waiting = this.drain.waiting.borrow_mut();
        match this.key.and_then(|key| waiting.get_mut(key)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => this.key = Some(waiting.insert(context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for DrainFuture<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // Bound to a name, so that the waker, which may be the last to know its task, is
            // dropped after the borrow.
            let waker = self.drain.waiting.borrow_mut().remove(key);
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::WakeCount;

    fn poll(drained: &mut DrainFuture<'_>, waker: &Waker) -> bool {
        Pin::new(drained)
            .poll(&mut Context::from_waker(waker))
            .is_ready()
    }

    #[test]
    fn who_waits_is_woken_once_by_its_latest_waker() {
        let counts = [(); 3].map(|()| Arc::new(WakeCount::default()));
        let wakers = counts.each_ref().map(|count| Waker::from(count.clone()));
        let drain = DrainSignal::new();
        let (mut first, mut second) = (drain.wait(), drain.wait());
        for _ in 0..3 {
            assert!(!poll(&mut first, &wakers[0]) && !poll(&mut second, &wakers[1]));
        }
        assert!(!poll(&mut second, &wakers[2]));
        drain.begin();
        assert_eq!(counts.map(|count| count.get()), [1, 0, 1]);
        assert!(poll(&mut first, &wakers[0]) && poll(&mut drain.wait(), &wakers[0]));
    }

    #[test]
    fn who_stops_waiting_leaves_nothing_behind() {
        let count = Arc::new(WakeCount::default());
        let drain = DrainSignal::new();
        for _ in 0..1_000 {
            // Each connection has a waker of its own.
            let waker = Waker::from(Arc::new(WakeCount::default()));
            assert!(!poll(&mut drain.wait(), &waker));
            assert!(!poll(&mut drain.wait(), &Waker::from(count.clone())));
        }
        assert_eq!(drain.waiting.borrow().len(), 0);
        assert_eq!(Arc::strong_count(&count), 1, "no waker is kept");
    }
}
