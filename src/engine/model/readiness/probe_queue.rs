//! Questions to the readiness hooks of instances, and the thread that asks them.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use conch_log as log;

use crate::model::readiness::check::ReadinessCheck;
use crate::{Error, clock};

/// What a round found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    Ready,
    NotReady,
    /// The version is being unloaded.
    Gone,
}

/// One question to one model version.
pub(crate) struct ProbeRequest {
    /// None: the model has no hook.
    queue: Option<Arc<ProbeQueue>>,
    /// The round that answers it, and the key of its waker.
    joined: Option<(u64, u64)>,
}

impl ProbeRequest {
    pub(crate) fn new(queue: &Arc<ProbeQueue>) -> ProbeRequest {
        ProbeRequest {
            queue: queue.has_hooks().then(|| Arc::clone(queue)),
            joined: None,
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<ProbeResult> {
        let Some(queue) = &self.queue else {
            // No hook: the registry's word is enough.
            return Poll::Ready(ProbeResult::Ready);
        };
        let mut state = queue.lock();
        if state.is_closed {
            return Poll::Ready(ProbeResult::Gone);
        }
        let (round, key) = match self.joined {
            Some(joined) => joined,
            None => {
                let now_ns = clock::monotonic_ns();
                match state.running_since_ns {
                    Some(since_ns)
                        if now_ns.saturating_sub(since_ns) >= ANSWER_WITHIN.as_nanos() as u64 =>
                    {
                        return Poll::Ready(ProbeResult::NotReady);
                    }
                    Some(_) => {}
                    None => {
                        state.round += 1;
                        state.running_since_ns = Some(now_ns);
                        queue.condvar.notify_one();
                    }
                }
                state.key += 1;
                *self.joined.insert((state.round, state.key))
            }
        };
        // A later round's finding is as good, and newer.
        if state.finished >= round {
            return Poll::Ready(state.finding);
        }
        state.waiting.insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for ProbeRequest {
    fn drop(&mut self) {
        if let (Some((_, key)), Some(queue)) = (self.joined, &self.queue) {
            queue.lock().waiting.remove(&key);
        }
    }
}

/// Where questions are left for a readiness prober. The lock is held for a few instructions; only
/// questions of readiness meet at it.
#[derive(Default)]
pub struct ProbeQueue {
    /// Whether there is anything to ask. Relaxed: set before the version is published, or later.
    has_hooks: AtomicBool,
    state: Mutex<ProbeState>,
    condvar: Condvar,
    /// A round has ended, or there will be no more.
    ended: Condvar,
}

pub(crate) struct ProbeState {
    /// The newest round that was ordered, and the newest that ended, with what it found.
    round: u64,
    finished: u64,
    finding: ProbeResult,
    /// When the round was ordered that is not finished yet.
    pub(crate) running_since_ns: Option<u64>,
    /// Who waits, by a key that is never used twice.
    pub(crate) waiting: HashMap<u64, Waker>,
    key: u64,
    is_closed: bool,
    /// Whom the next round asks.
    checks: Arc<[Arc<dyn ReadinessCheck>]>,
}

impl Default for ProbeState {
    fn default() -> ProbeState {
        ProbeState {
            round: 0,
            finished: 0,
            finding: ProbeResult::NotReady,
            running_since_ns: None,
            waiting: HashMap::new(),
            key: 0,
            is_closed: false,
            checks: Arc::default(),
        }
    }
}

impl ProbeQueue {
    /// Whether an instance has a readiness hook.
    pub fn has_hooks(&self) -> bool {
        self.has_hooks.load(Ordering::Relaxed)
    }

    /// Waits for the end of the round that runs, if one does.
    pub(crate) fn await_round(&self) {
        let state = self.ended.wait_while(self.lock(), |state| {
            state.running_since_ns.is_some() && !state.is_closed
        });
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ProbeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that asks the instances of one model version.
pub(crate) struct ReadinessProber {
    queue: Arc<ProbeQueue>,
    thread: Option<JoinHandle<()>>,
}

impl ReadinessProber {
    /// A thread that answers what is left in `queue`. None if there is nothing to ask.
    ///
    /// # Errors
    /// INTERNAL if no thread can be started.
    pub(crate) fn start(
        name: &str,
        version: i64,
        queue: &Arc<ProbeQueue>,
        checks: Vec<Arc<dyn ReadinessCheck>>,
    ) -> Result<Option<ReadinessProber>, Error> {
        if checks.is_empty() {
            return Ok(None);
        }
        queue.lock().checks = checks.into();
        let label = format!("'{name}' version {version}");
        let own = Arc::clone(queue);
        let thread = thread::Builder::new()
            .name("readiness".to_owned())
            .spawn(move || inspect(&own, &label))
            .map_err(|error| {
                Error::internal(format!(
                    "failed to start a thread that asks the backend of model '{name}' whether it \
                     is ready: {error}"
                ))
            })?;
        queue.has_hooks.store(true, Ordering::Relaxed);
        Ok(Some(ReadinessProber {
            queue: Arc::clone(queue),
            thread: Some(thread),
        }))
    }

    /// Where to leave questions.
    pub(crate) fn queue(&self) -> &Arc<ProbeQueue> {
        &self.queue
    }

    /// Asks others, from the next round on.
    pub(crate) fn check_others(&self, checks: Vec<Arc<dyn ReadinessCheck>>) {
        self.queue.lock().checks = checks.into();
    }

    /// Answers who waits, and asks no more. Does not wait for a hook.
    pub(crate) fn close(&self) {
        let mut state = self.queue.lock();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.queue.condvar.notify_one();
        self.queue.ended.notify_all();
        waiting.into_values().for_each(Waker::wake);
    }
}

impl Drop for ReadinessProber {
    /// Blocks as long as a hook does: its instance must outlive the call.
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a readiness prober panicked outside its backend");
        }
    }
}

impl std::fmt::Debug for ReadinessProber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadinessProber").finish_non_exhaustive()
    }
}

/// The life of a readiness prober's thread.
fn inspect(queue: &ProbeQueue, label: &str) {
    let mut state = queue.lock();
    loop {
        while !state.is_closed && state.running_since_ns.is_none() {
            state = queue
                .condvar
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return;
        }
        let checks = Arc::clone(&state.checks);
        drop(state);
        let finding = run_checks(&checks, label);
        drop(checks);
        state = queue.lock();
        state.finding = finding;
        state.finished = state.round;
        state.running_since_ns = None;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        queue.ended.notify_all();
        waiting.into_values().for_each(Waker::wake);
        state = queue.lock();
    }
}

/// One round: the first that is not ready decides.
fn run_checks(checks: &[Arc<dyn ReadinessCheck>], label: &str) -> ProbeResult {
    for readiness_check in checks {
        let answer = catch_unwind(AssertUnwindSafe(|| readiness_check.check()));
        let error = match answer {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error,
            Err(_) => Error::internal("panic while the backend was asked"),
        };
        log::verbose!(1, "Model {label} is not ready: {error}");
        return ProbeResult::NotReady;
    }
    ProbeResult::Ready
}

/// How long an answer is waited for. Above the 5 s that upstream's Python backend gives a model's
/// `is_ready`, so that its own verdict comes first.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(6);
