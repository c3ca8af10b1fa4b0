//! Probes of the readiness of models, as futures.

use crate::model::readiness::ANSWER_WITHIN;
pub(crate) use crate::model::readiness::probe_queue::{ProbeRequest, ProbeResult};
use crate::{ModelVersion, clock};
use conch_log as log;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::task::Wake;
use std::task::Waker;
use std::thread;
use std::thread::Thread;
use std::time::Duration;

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
    visit: Option<(Arc<ModelVersion>, ProbeRequest)>,
    /// What a version says that is being unloaded: it is no longer ready, but that is no fault of
    /// the server.
    verdict_when_gone: bool,
    pub(crate) deadline_ns: u64,
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
    pub fn abandon(&self) -> bool {
        if let Some((version, _)) = &self.visit {
            log::warning!(
                "the backend of model '{}' version {} does not say within {} s whether it is \
                 ready; it counts as not ready",
                version.name,
                version.version,
                ANSWER_WITHIN.as_secs()
            );
        }
        false
    }

    pub(crate) fn wait(mut self) -> bool {
        let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(is_ready) = Pin::new(&mut self).poll(&mut context) {
                return is_ready;
            }
            let left_ns = self.deadline_ns.saturating_sub(clock::monotonic_ns());
            if left_ns == 0 {
                return self.abandon();
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
            let (_, request) = match &mut this.visit {
                Some(visit) => visit,
                none => match this.left.pop() {
                    None => return Poll::Ready(true),
                    Some(version) => {
                        let request = ProbeRequest::new(&version.probes);
                        none.insert((version, request))
                    }
                },
            };
            let is_fine = match std::task::ready!(request.poll(context)) {
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
