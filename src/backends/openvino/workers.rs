//! Several runs at a time in one instance: a request of OpenVINO's for each, and a thread that
//! waits for it.
//!
//! OpenVINO would also call back when a run ends, on a thread of its own. Its C library does not
//! tell that call whether the run failed; only waiting does.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use conch_backend_sdk as sdk;
use sdk::engine::Runner;
use sdk::{DetachedBatch, Error};

use crate::session::Session;

/// The threads of one instance. Dropped, they finish what they have, and end.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// A batch was given, or the workers are to end.
    given: Condvar,
    /// A worker has nothing to do.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    /// Not more than there are idle workers.
    batches: Vec<DetachedBatch>,
    idle_count: usize,
    is_ending: bool,
}

impl Workers {
    /// A thread for each runner, on the CPUs of the calling thread.
    ///
    /// # Errors
    /// `Unavailable` if the system has no thread.
    pub fn new(model_name: &str, runners: Vec<Runner<Session>>) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                batches: Vec::with_capacity(runners.len()),
                idle_count: runners.len(),
                is_ending: false,
            }),
            given: Condvar::new(),
            idle: Condvar::new(),
        });
        let mut workers = Workers {
            shared,
            threads: Vec::with_capacity(runners.len()),
        };
        for runner in runners {
            let shared = Arc::clone(&workers.shared);
            let name = model_name.to_owned();
            let thread = thread::Builder::new()
                .name("openvino".to_owned())
                .spawn(move || work(&shared, &name, runner))
                .map_err(|error| {
                    Error::unavailable(format!("no thread for model '{model_name}': {error}"))
                })?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Gives a batch to an idle worker; waits for one.
    pub fn submit(&self, batch: DetachedBatch) {
        let mut state = self.shared.lock();
        while state.idle_count == 0 {
            state = wait(&self.shared.idle, state);
        }
        state.idle_count -= 1;
        state.batches.push(batch);
        self.shared.given.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.given.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of a worker is in the log, and its batch was answered.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch; `None` at the end, when all are given out.
    fn next(&self) -> Option<DetachedBatch> {
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

fn work(shared: &Shared, model_name: &str, mut runner: Runner<Session>) {
    while let Some(batch) = shared.next() {
        batch.finish(|batch| runner.run(model_name, batch));
        shared.lock().idle_count += 1;
        shared.idle.notify_one();
    }
}

fn wait<'s>(condition: &Condvar, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
    condition
        .wait(state)
        .unwrap_or_else(PoisonError::into_inner)
}
