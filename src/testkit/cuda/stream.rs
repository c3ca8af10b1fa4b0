//! Streams: threads that carry out what was enqueued, in order. Events are marks in their queues.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::code::{Code, NOT_READY, OUT_OF_MEMORY, is_sticky};
use crate::graph::Capture;
use crate::health::Health;

pub type Work = Box<dyn FnOnce() -> Result<(), Code> + Send>;

enum Job {
    Work(Work),
    Record(Arc<Mark>),
    Wait(Arc<Mark>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

/// Work that failed with an error that is not sticky: whoever waits for it next is told.
struct Failure {
    code: Code,
    is_reported: AtomicBool,
}

impl Failure {
    fn report(&self) -> Code {
        self.is_reported.store(true, Ordering::Release);
        self.code
    }

    fn is_open(&self) -> bool {
        !self.is_reported.load(Ordering::Acquire)
    }
}

/// One recording of an event.
#[derive(Default)]
pub struct Mark {
    state: Mutex<MarkState>,
    changed: Condvar,
}

#[derive(Default)]
struct MarkState {
    /// None: it is not reached.
    at: Option<Instant>,
    failure: Option<Arc<Failure>>,
}

impl Mark {
    fn reach(&self, failure: Option<Arc<Failure>>) {
        *lock(&self.state) = MarkState {
            at: Some(Instant::now()),
            failure,
        };
        self.changed.notify_all();
    }

    fn outcome(state: &MarkState) -> Result<(), Code> {
        state
            .failure
            .as_ref()
            .map_or(Ok(()), |failure| Err(failure.report()))
    }

    pub fn query(&self) -> Result<(), Code> {
        let state = lock(&self.state);
        if state.at.is_some() {
            Mark::outcome(&state)
        } else {
            Err(NOT_READY)
        }
    }

    pub fn reached_at(&self) -> Result<Instant, Code> {
        lock(&self.state).at.ok_or(NOT_READY)
    }

    pub fn wait(&self) -> Result<(), Code> {
        Mark::outcome(&self.until_reached())
    }

    fn until_reached(&self) -> MutexGuard<'_, MarkState> {
        let mut state = lock(&self.state);
        while state.at.is_none() {
            state = wait(&self.changed, state);
        }
        state
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    submitted: u64,
    finished: u64,
    is_closing: bool,
    failure: Option<Arc<Failure>>,
}

impl Queue {
    /// The failure that nobody was told of, if there is one.
    fn open_failure(&mut self) -> Option<Arc<Failure>> {
        self.failure.take_if(|failure| !failure.is_open());
        self.failure.clone()
    }
}

pub struct Stream {
    pub device: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
    health: Arc<Health>,
    /// What is captured instead of done.
    pub capture: Capture,
}

impl Stream {
    pub fn start(device: usize, health: Arc<Health>) -> Result<Arc<Stream>, Code> {
        let queue = Mutex::new(Queue::default());
        let stream = Arc::new(Stream {
            device,
            queue,
            changed: Condvar::new(),
            health,
            capture: Capture::default(),
        });
        let worker = Arc::clone(&stream);
        let builder = std::thread::Builder::new().name("cuda-double".to_owned());
        builder
            .spawn(move || worker.run())
            .map_err(|_| OUT_OF_MEMORY)?;
        Ok(stream)
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            let outcome = match job {
                // After a sticky error the device does nothing more.
                Job::Work(work) => self.health.check().and_then(|()| work()),
                Job::Wait(mark) => {
                    drop(mark.until_reached());
                    Ok(())
                }
                Job::Record(mark) => {
                    let failure = lock(&self.queue).open_failure();
                    mark.reach(failure);
                    Ok(())
                }
            };
            self.finish(outcome);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.is_closing {
                return None;
            }
            queue = wait(&self.changed, queue);
        }
    }

    fn finish(&self, outcome: Result<(), Code>) {
        if let Err(code) = outcome {
            self.health.note(code);
        }
        let mut queue = lock(&self.queue);
        if let Err(code) = outcome
            && !is_sticky(code)
            && self.health.check().is_ok()
        {
            let is_reported = AtomicBool::new(false);
            queue.failure = Some(Arc::new(Failure { code, is_reported }));
        }
        queue.finished += 1;
        drop(queue);
        self.changed.notify_all();
    }

    fn submit(&self, job: Job) {
        let mut queue = lock(&self.queue);
        queue.submitted += 1;
        queue.jobs.push_back(job);
        drop(queue);
        self.changed.notify_all();
    }

    pub fn enqueue(&self, work: Work) {
        self.submit(Job::Work(work));
    }

    pub fn record(&self) -> Arc<Mark> {
        let mark = Arc::new(Mark::default());
        self.submit(Job::Record(Arc::clone(&mark)));
        mark
    }

    pub fn wait_for(&self, mark: Arc<Mark>) {
        self.submit(Job::Wait(mark));
    }

    pub fn query(&self) -> Result<(), Code> {
        let queue = lock(&self.queue);
        match queue.finished < queue.submitted {
            true => Err(NOT_READY),
            false => Stream::outcome(queue),
        }
    }

    /// Waits for all that was enqueued so far.
    pub fn synchronize(&self) -> Result<(), Code> {
        Stream::outcome(self.until_idle())
    }

    /// As [`Stream::synchronize`], but leaves failures to be told to others.
    pub fn drain(&self) {
        drop(self.until_idle());
    }

    fn until_idle(&self) -> MutexGuard<'_, Queue> {
        let mut queue = lock(&self.queue);
        let target = queue.submitted;
        while queue.finished < target {
            queue = wait(&self.changed, queue);
        }
        queue
    }

    fn outcome(mut queue: MutexGuard<'_, Queue>) -> Result<(), Code> {
        let failure = queue.open_failure();
        queue.failure = None;
        failure.map_or(Ok(()), |failure| Err(failure.report()))
    }

    /// Lets the thread end once it has done what was enqueued.
    pub fn close(&self) {
        lock(&self.queue).is_closing = true;
        self.changed.notify_all();
    }
}
