//! Whether backends can still serve the models that are ready: the question behind readiness, put
//! to their hooks.
//!
//! A hook is foreign code and may take long, or for ever; whoever asks (a shard, mostly) must not
//! wait in it. So a model version whose backend has the hook gets a thread of its own, the
//! readiness prober, which sleeps until somebody wants to know and then asks one instance after the
//! other, while these execute or not, as upstream does. All who ask during a round share its
//! answer. A hook that hangs holds up its own model only: those who wait give up after
//! [`ANSWER_WITHIN`], and from then on the answer is "not ready" at once, until the round ends.
//!
//! Models without a hook cost nothing: what the registry knows of them is the answer.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use conch_log as log;

use crate::backend::ReadinessCheck;
use crate::{Error, ModelVersion, clock};

/// How long an answer is waited for. Above the 5 s that upstream's Python backend gives a model's
/// `is_ready`, so that its own verdict comes first.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(6);

/// The answer to a question for readiness, or the way to it.
#[must_use]
pub enum ReadinessAnswer {
    Known(bool),
    /// Backends are to be asked.
    Asked(ReadinessProbe),
}

impl ReadinessAnswer {
    /// The answer. Blocks up to [`ANSWER_WITHIN`] if backends are to be asked; not for shards.
    pub fn wait(self) -> bool {
        match self {
            ReadinessAnswer::Known(is_ready) => is_ready,
            ReadinessAnswer::Asked(probe) => probe.wait(),
        }
    }
}

/// Asks the backends of some model versions, one after the other, until one is not ready. Dropping
/// it ends the waiting, not the hook.
pub struct ReadinessProbe {
    /// Those still to be asked, the next one last.
    left: Vec<Arc<ModelVersion>>,
    visit: Option<ProbeRequest>,
    /// What a version says that is being unloaded: it is no longer ready, but that is no fault of
    /// the server.
    verdict_when_gone: bool,
    deadline_ns: u64,
}

impl ReadinessProbe {
    /// About all of `models`. Unloading one is no reason for a server to be not ready.
    pub fn about_all(models: &[Arc<ModelVersion>]) -> ReadinessProbe {
        ReadinessProbe::new(models.iter().rev().cloned().collect(), true)
    }

    pub fn about(model: &Arc<ModelVersion>) -> ReadinessProbe {
        ReadinessProbe::new(vec![Arc::clone(model)], false)
    }

    fn new(left: Vec<Arc<ModelVersion>>, verdict_when_gone: bool) -> ReadinessProbe {
        ReadinessProbe {
            left,
            visit: None,
            verdict_when_gone,
            deadline_ns: clock::monotonic_ns().saturating_add(ANSWER_WITHIN.as_nanos() as u64),
        }
    }

    /// When (monotonic) to stop waiting: then the answer is [`ReadinessProbe::give_up`].
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// The answer if none comes in time: not ready.
    pub fn give_up(&self) -> bool {
        if let Some(ProbeRequest { version, .. }) = &self.visit {
            log::warning!(
                "the backend of model '{}' version {} does not say within {} s whether it is ready; it counts as not ready",
                version.name,
                version.version,
                ANSWER_WITHIN.as_secs()
            );
        }
        false
    }

    fn wait(mut self) -> bool {
        let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(is_ready) = Pin::new(&mut self).poll(&mut context) {
                return is_ready;
            }
            let left_ns = self.deadline_ns.saturating_sub(clock::monotonic_ns());
            if left_ns == 0 {
                return self.give_up();
            }
            thread::park_timeout(Duration::from_nanos(left_ns));
        }
    }
}

impl Future for ReadinessProbe {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let this = &mut *self;
        loop {
            let visit = match &mut this.visit {
                Some(visit) => visit,
                none => match this.left.pop() {
                    None => return Poll::Ready(true),
                    Some(version) => none.insert(ProbeRequest::new(version)),
                },
            };
            let is_fine = match std::task::ready!(visit.poll(context)) {
                ProbeResult::Ready => true,
                ProbeResult::NotReady => false,
                ProbeResult::Gone => this.verdict_when_gone,
            };
            this.visit = None;
            if !is_fine {
                return Poll::Ready(false);
            }
        }
    }
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What a round found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeResult {
    Ready,
    NotReady,
    /// The version is being unloaded.
    Gone,
}

/// One question to one model version.
struct ProbeRequest {
    version: Arc<ModelVersion>,
    /// The round that answers it, and the key of its waker.
    joined: Option<(u64, u64)>,
}

impl ProbeRequest {
    fn new(version: Arc<ModelVersion>) -> ProbeRequest {
        ProbeRequest {
            version,
            joined: None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ProbeResult> {
        let Some(queue) = self.version.inspection.get() else {
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
        if let (Some((_, key)), Some(queue)) = (self.joined, self.version.inspection.get()) {
            queue.lock().waiting.remove(&key);
        }
    }
}

/// Where questions are left for a readiness prober. The lock is held for a few instructions; only
/// questions of readiness meet at it.
pub struct ProbeQueue {
    state: Mutex<ProbeState>,
    condvar: Condvar,
    /// A round has ended, or there will be no more.
    ended: Condvar,
}

struct ProbeState {
    /// The newest round that was ordered, and the newest that ended, with what it found.
    round: u64,
    finished: u64,
    finding: ProbeResult,
    /// When the round was ordered that is not finished yet.
    running_since_ns: Option<u64>,
    /// Who waits, by a key that is never used twice.
    waiting: HashMap<u64, Waker>,
    key: u64,
    is_closed: bool,
    /// Whom the next round asks.
    checkups: Arc<[Arc<dyn ReadinessCheck>]>,
}

impl ProbeQueue {
    /// Waits for the end of the round that runs, if one does.
    pub(crate) fn await_round(&self) {
        let state = self.ended.wait_while(self.lock(), |state| {
            state.running_since_ns.is_some() && !state.is_closed
        });
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, ProbeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that asks the instances of one model version.
pub(crate) struct ReadinessProber {
    queue: Arc<ProbeQueue>,
    thread: Option<JoinHandle<()>>,
}

impl ReadinessProber {
    /// None if there is nothing to ask.
    ///
    /// # Errors
    /// INTERNAL if no thread can be started.
    pub(crate) fn start(
        version: &ModelVersion,
        checkups: Vec<Arc<dyn ReadinessCheck>>,
    ) -> Result<Option<ReadinessProber>, Error> {
        if checkups.is_empty() {
            return Ok(None);
        }
        let queue = Arc::new(ProbeQueue {
            state: Mutex::new(ProbeState {
                round: 0,
                finished: 0,
                finding: ProbeResult::NotReady,
                running_since_ns: None,
                waiting: HashMap::new(),
                key: 0,
                is_closed: false,
                checkups: checkups.into(),
            }),
            condvar: Condvar::new(),
            ended: Condvar::new(),
        });
        let label = format!("'{}' version {}", version.name, version.version);
        let own = Arc::clone(&queue);
        let thread = thread::Builder::new()
            .name("readiness".to_owned())
            .spawn(move || inspect(&own, &label))
            .map_err(|error| {
                Error::internal(format!(
                    "failed to start a thread that asks the backend of model '{}' whether it is ready: {error}",
                    version.name
                ))
            })?;
        Ok(Some(ReadinessProber {
            queue,
            thread: Some(thread),
        }))
    }

    /// Where to leave questions.
    pub(crate) fn queue(&self) -> &Arc<ProbeQueue> {
        &self.queue
    }

    /// Asks others, from the next round on.
    pub(crate) fn ask_others(&self, checkups: Vec<Arc<dyn ReadinessCheck>>) {
        self.queue.lock().checkups = checkups.into();
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
            log::error!("an inspector panicked outside its backend");
        }
    }
}

impl std::fmt::Debug for ReadinessProber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inspector").finish_non_exhaustive()
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
        let checkups = Arc::clone(&state.checkups);
        drop(state);
        let finding = ask(&checkups, label);
        drop(checkups);
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
fn ask(checkups: &[Arc<dyn ReadinessCheck>], label: &str) -> ProbeResult {
    for readiness_check in checkups {
        let answer = catch_unwind(AssertUnwindSafe(|| readiness_check.ask()));
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

#[cfg(test)]
#[path = "readiness_tests.rs"]
mod tests;
