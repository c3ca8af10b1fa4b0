//! Several runs at a time in one instance: a request of OpenVINO's for each, and a thread that
//! waits for it.
//!
//! OpenVINO would also call back when a run ends, on a thread of its own. Its C library does not
//! tell that call whether the run failed; only waiting does.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use conch_backend_sdk::Error;

/// The threads of one instance, which execute batches `B`. Dropped, they finish what they have, and
/// end.
pub struct Workers<B> {
    queue: Arc<BatchQueue<B>>,
    threads: Vec<JoinHandle<()>>,
}

struct BatchQueue<B> {
    state: Mutex<QueueState<B>>,
    /// A batch was given, or the workers are to end.
    given: Condvar,
    /// A worker has nothing to do.
    idle: Condvar,
}

struct QueueState<B> {
    /// Not more than there are idle workers.
    batches: Vec<B>,
    idle_count: usize,
    is_ending: bool,
}

impl<B: Send + 'static> Workers<B> {
    /// A thread for each of `executes`, which executes a batch, on the CPUs of the calling thread.
    ///
    /// # Errors
    /// `Unavailable` if the system has no thread.
    pub fn new<E>(model_name: &str, executes: Vec<E>) -> Result<Self, Error>
    where
        E: FnMut(B) + Send + 'static,
    {
        let queue = Arc::new(BatchQueue {
            state: Mutex::new(QueueState {
                batches: Vec::with_capacity(executes.len()),
                idle_count: executes.len(),
                is_ending: false,
            }),
            given: Condvar::new(),
            idle: Condvar::new(),
        });
        let mut workers = Workers {
            queue,
            threads: Vec::with_capacity(executes.len()),
        };
        for execute in executes {
            let queue = Arc::clone(&workers.queue);
            let thread = thread::Builder::new()
                .name("openvino".to_owned())
                .spawn(move || work(&queue, execute))
                .map_err(|error| {
                    Error::unavailable(format!("no thread for model '{model_name}': {error}"))
                })?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Gives a batch to an idle worker; waits for one.
    pub fn submit(&self, batch: B) {
        let mut state = self.queue.lock();
        while state.idle_count == 0 {
            state = wait(&self.queue.idle, state);
        }
        state.idle_count -= 1;
        state.batches.push(batch);
        self.queue.given.notify_one();
    }
}

impl<B> Drop for Workers<B> {
    fn drop(&mut self) {
        self.queue.lock().is_ending = true;
        self.queue.given.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of a worker is in the log, and its batch was answered.
            let _ = thread.join();
        }
    }
}

impl<B> BatchQueue<B> {
    fn lock(&self) -> MutexGuard<'_, QueueState<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch; `None` at the end, when all are given out.
    fn next(&self) -> Option<B> {
        let mut state = self.lock();
        loop {
            if let Some(batch) = state.batches.pop() {
                return Some(batch);
            }
            if state.is_ending {
                return None;
            }
            state = wait(&self.given, state);
        }
    }
}

fn work<B>(queue: &BatchQueue<B>, mut execute: impl FnMut(B)) {
    while let Some(batch) = queue.next() {
        execute(batch);
        queue.lock().idle_count += 1;
        queue.idle.notify_one();
    }
}

fn wait<'s, S>(condition: &Condvar, state: MutexGuard<'s, S>) -> MutexGuard<'s, S> {
    condition
        .wait(state)
        .unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn as_many_batches_at_a_time_as_workers() {
        let met = Arc::new(Barrier::new(4));
        let (executed, names) = mpsc::channel();
        let execute = |_| {
            let (met, executed) = (Arc::clone(&met), executed.clone());
            move |number: usize| {
                // Ends only where four are here.
                met.wait();
                executed.send(number).unwrap();
            }
        };
        let workers = Workers::new("model", (0..4).map(execute).collect()).unwrap();
        for number in 0..12 {
            workers.submit(number);
        }
        drop(workers);
        let mut numbers: Vec<_> = names.try_iter().collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_given_is_finished_and_never_more_than_there_are_workers() {
        let (now, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let execute = |_| {
            let (now, done) = (Arc::clone(&now), Arc::clone(&done));
            move |(): ()| {
                assert!(now.fetch_add(1, Ordering::SeqCst) < 3);
                thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
            }
        };
        let workers = Workers::new("model", (0..3).map(execute).collect()).unwrap();
        (0..1000).for_each(|_| workers.submit(()));
        drop(workers);
        assert_eq!(done.load(Ordering::SeqCst), 1000);
    }

    #[test]
    fn workers_without_work_end() {
        let execute = |_: u8| unreachable!("nothing was given");
        drop(Workers::new("model", vec![execute; 2]).unwrap());
    }
}
