//! What comes back from a call, handed over one at a time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::response::ServerResponse;
use crate::Error;

/// One message to a caller: a response, an error in its place, or nothing but the end.
#[derive(Debug)]
pub struct ServerDelivery {
    /// None only in the last one, of a decoupled model that ended without a further response.
    pub response: Option<Result<ServerResponse, Error>>,
    /// Nothing follows.
    pub is_final: bool,
    /// The server did not take the request: no model has seen it.
    pub is_unsent: bool,
}

impl ServerDelivery {
    /// The error of a request that was not sent, which ends the call.
    pub(super) fn failure(error: Error) -> Self {
        ServerDelivery {
            response: Some(Err(error)),
            is_final: true,
            is_unsent: true,
        }
    }
}

/// A function of the caller's.
pub(super) type Receive<D> = Box<dyn FnMut(D) + Send>;

/// Calls the caller's function for one delivery after the other, in order, on the threads that
/// bring them. A thread that finds another one inside of the function leaves its delivery to that
/// one, so that nobody waits and the function may cause further deliveries itself. What waits is
/// bounded by the memory that the caller gives for outputs.
pub(super) struct DeliveryQueue<D> {
    state: Mutex<QueueState<D>>,
}

struct QueueState<D> {
    waiting: VecDeque<(D, bool)>,
    receiver: Receiver<D>,
}

/// ```text
/// Idle ──push──► Busy ──nothing waits──► Idle
///                 └──last delivery, panic──► Ended
/// ```
enum Receiver<D> {
    Idle(Receive<D>),
    /// A thread is inside of the function and takes what comes meanwhile.
    Busy,
    Ended,
}

/// The caller's function panicked. It is not called again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Panicked;

impl<D> DeliveryQueue<D> {
    pub(super) fn new(receive: Receive<D>) -> Self {
        DeliveryQueue {
            state: Mutex::new(QueueState {
                waiting: VecDeque::new(),
                receiver: Receiver::Idle(receive),
            }),
        }
    }

    /// Hands `delivery` over, or leaves it to the thread that is handing over. After the last one
    /// the function is dropped; what comes later is, too.
    ///
    /// # Errors
    /// The function panicked, now.
    pub(super) fn push(&self, delivery: D, is_last: bool) -> Result<(), Panicked> {
        let mut state = self.lock();
        match &state.receiver {
            Receiver::Idle(_) => state.waiting.push_back((delivery, is_last)),
            Receiver::Busy => {
                state.waiting.push_back((delivery, is_last));
                return Ok(());
            }
            // Dropped after the lock.
            Receiver::Ended => return Ok(()),
        }
        let Receiver::Idle(mut receive) = std::mem::replace(&mut state.receiver, Receiver::Busy)
        else {
            return Ok(());
        };
        while let Some((delivery, is_last)) = state.waiting.pop_front() {
            drop(state);
            let called = catch_unwind(AssertUnwindSafe(|| receive(delivery)));
            if is_last || called.is_err() {
                return self.end(receive, called.is_ok());
            }
            state = self.lock();
        }
        state.receiver = Receiver::Idle(receive);
        Ok(())
    }

    fn end(&self, receive: Receive<D>, is_well: bool) -> Result<(), Panicked> {
        let mut state = self.lock();
        state.receiver = Receiver::Ended;
        let rest = std::mem::take(&mut state.waiting);
        drop(state);
        // What the function owns is the caller's code as well.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop((receive, rest))));
        if is_well && dropped.is_ok() {
            Ok(())
        } else {
            Err(Panicked)
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::thread;

    use super::*;

    type Seen = Arc<Mutex<Vec<u32>>>;

    #[test]
    fn deliveries_of_many_threads_come_one_by_one_and_all() {
        const THREADS: u32 = 4;
        const EACH: u32 = if cfg!(miri) { 20 } else { 500 };
        let (seen, is_inside) = (Seen::default(), AtomicBool::new(false));
        let noted = Arc::clone(&seen);
        let queue = DeliveryQueue::new(Box::new(move |number| {
            assert!(!is_inside.swap(true, Ordering::SeqCst), "two at once");
            noted.lock().unwrap().push(number);
            is_inside.store(false, Ordering::SeqCst);
        }));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let queue = &queue;
                scope.spawn(move || {
                    for index in 0..EACH {
                        queue.push(thread * EACH + index, false).unwrap();
                    }
                });
            }
        });
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        for thread in 0..THREADS {
            let own: Vec<u32> = seen
                .iter()
                .copied()
                .filter(|n| n / EACH == thread)
                .collect();
            assert_eq!(
                own,
                (thread * EACH..(thread + 1) * EACH).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn a_delivery_from_within_waits_for_the_end_of_the_call() {
        let seen = Seen::default();
        let queue: Arc<OnceLock<DeliveryQueue<u32>>> = Arc::default();
        let (noted, inner) = (Arc::clone(&seen), Arc::clone(&queue));
        let made = DeliveryQueue::new(Box::new(move |number| {
            if number == 1 {
                inner.get().unwrap().push(2, true).unwrap();
                // Behind the last one.
                inner.get().unwrap().push(3, false).unwrap();
            }
            noted.lock().unwrap().push(number);
        }));
        let queue = queue.get_or_init(|| made);
        queue.push(1, false).unwrap();
        queue.push(4, false).unwrap();
        assert_eq!(*seen.lock().unwrap(), [1, 2]);
    }

    #[test]
    fn the_function_is_dropped_after_the_last_delivery_or_a_panic() {
        for (number, is_last, expected) in [
            (1, false, Ok(2)),
            (1, true, Ok(1)),
            (0, false, Err(Panicked)),
            (0, true, Err(Panicked)),
        ] {
            let owned = Arc::new(());
            let kept = Arc::clone(&owned);
            let queue = DeliveryQueue::new(Box::new(move |number: u32| {
                assert!(number > 0 && Arc::strong_count(&kept) > 0, "as ordered");
            }));
            let outcome = queue.push(number, is_last);
            let outcome = outcome.map(|()| Arc::strong_count(&owned));
            assert_eq!(outcome, expected);
            if expected == Err(Panicked) {
                assert_eq!(Arc::strong_count(&owned), 1);
                assert_eq!(queue.push(0, true), Ok(()), "it is not called again");
            }
        }
    }
}
