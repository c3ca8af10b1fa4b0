//! Ensembles: models that are made of other models.
//!
//! A version of an ensemble has no cores and no queue. Its requests run as a dataflow of steps,
//! each an ordinary request to the step's model, which is admitted and submitted by the thread that
//! completed the step before (the first ones by whoever submits). Outputs become the next steps'
//! inputs as views, without a copy. [`run`] drives one request;
//! [`conch_scheduler::ensemble_graph`] decides, which knows neither models nor threads.

mod answer;
mod execution_state;
mod inline;
mod inline_queue;
mod limit;
pub(crate) mod run;
mod run_queue;
mod step;
mod tensor;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use conch_config::{Ensembling, ResolvedConfig};
use conch_scheduler::ensemble_graph::Graph;

use crate::ensemble::limit::StepLimit;
pub(crate) use crate::ensemble::run::Execution;
pub use crate::ensemble::run::NESTING_MAX;
pub use crate::ensemble::run_queue::TURN_MAX;
use crate::model::registry::{Registry, Snapshot};
use crate::model::version::{Pin, Rejected};
use crate::request::context::{Executor, SubmitRefusal};
use crate::request::inline::InlineOffer;
use crate::request::refusal::stopping;
use crate::threads::timer_thread::TimerThread;
use crate::{Error, ModelVersion, RequestHandle, admission};

/// What a version of an ensemble holds.
#[derive(Debug)]
pub struct Ensemble {
    graph: Graph,
    /// The models of the steps.
    models: Box<[StepModel]>,
    registry: Arc<Registry>,
    timer_thread: Arc<TimerThread>,
    /// By step; empty unless the configuration bounds what is in flight.
    limits: Box<[StepLimit<Arc<Execution>>]>,
    inflight_max: u32,
    is_closed: AtomicBool,
    own: Weak<Ensemble>,
}

/// Which model a step runs: it is looked up for each request.
#[derive(Debug)]
struct StepModel {
    namespace: Box<str>,
    name: Box<str>,
    /// None: the highest that is ready.
    version: Option<i64>,
}

impl Ensemble {
    /// The ensemble that `config` describes, of which [`conch_config::compose`] has made sure that
    /// it fits its models.
    pub fn new(
        config: &ResolvedConfig,
        ensembling: &Ensembling,
        registry: &Arc<Registry>,
        timer_thread: &Arc<TimerThread>,
    ) -> Arc<Ensemble> {
        let models = ensembling.steps.iter().map(|step| StepModel {
            namespace: step.namespace.as_str().into(),
            name: step.model.as_str().into(),
            version: step.version,
        });
        Arc::new_cyclic(|own| Ensemble {
            graph: Graph::new(
                ensembling,
                config.inputs.iter().map(|spec| &*spec.name),
                config.outputs.iter().map(|spec| &*spec.name),
            ),
            models: models.collect(),
            registry: Arc::clone(registry),
            timer_thread: Arc::clone(timer_thread),
            limits: match ensembling.inflight_max {
                0 => Box::default(),
                max => ensembling
                    .steps
                    .iter()
                    .map(|_| StepLimit::new(max))
                    .collect(),
            },
            inflight_max: ensembling.inflight_max,
            is_closed: AtomicBool::new(false),
            own: Weak::clone(own),
        })
    }

    /// How many of a decoupled step's responses may be on their way through the steps behind it, in
    /// one request.
    fn window(&self) -> u64 {
        match self.inflight_max {
            0 => WINDOW,
            max => u64::from(max),
        }
    }

    /// How long a decoupled step waits for those behind it while these make no progress.
    fn patience(&self) -> Duration {
        match self.inflight_max {
            0 => PATIENCE,
            _ => PATIENCE_IF_BOUNDED,
        }
    }

    /// Refuses further requests; those that run go on.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// By step that is bounded: places taken, places in all, and how many wait for one.
    #[cfg(test)]
    pub(crate) fn places(&self) -> Vec<(u32, u32, usize)> {
        self.limits.iter().map(StepLimit::counts).collect()
    }

    /// The version that a step wants; none: the highest that is ready.
    fn version_of(&self, step: usize) -> Option<i64> {
        self.models.get(step)?.version
    }

    /// The model of each step: none of them is unloaded before the request is over.
    ///
    /// # Errors
    /// In the lookup's words.
    fn pin(&self, id: &str) -> Result<Box<[Pin]>, Error> {
        let mut attempts_left = SNAPSHOTS_MAX;
        loop {
            let snapshot = self.registry.snapshot();
            let found = self.models.iter().map(|step| {
                let model = step.find(&snapshot).map_err(PinFailure::Lookup)?;
                Pin::new(model).map_err(|why| PinFailure::Rejected(why, Arc::clone(model)))
            });
            match found.collect() {
                Ok(pins) => return Ok(pins),
                // Replaced since the snapshot: there is another by now.
                Err(PinFailure::Rejected(Rejected::Retired, _)) if attempts_left > 0 => {
                    attempts_left -= 1;
                }
                Err(PinFailure::Rejected(why, model)) => {
                    return Err(admission::refuse(&model, id, why));
                }
                Err(PinFailure::Lookup(error)) => return Err(error),
            }
        }
    }
}

impl Executor for Ensemble {
    fn submit(&self, handle: RequestHandle, offer: &mut InlineOffer) -> Result<(), SubmitRefusal> {
        match self.own.upgrade().filter(|_| !self.is_closed()) {
            Some(own) => Execution::begin(&own, handle, offer),
            None => return Err(stopping(&handle)),
        }
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

impl StepModel {
    fn find<'s>(&self, snapshot: &'s Snapshot) -> Result<&'s Arc<ModelVersion>, Error> {
        snapshot.find_in(&self.namespace, &self.name, self.version)
    }
}

/// All models, or why one takes no more.
/// Why the model of a step cannot be pinned.
enum PinFailure {
    Lookup(Error),
    Rejected(Rejected, Arc<ModelVersion>),
}

/// As many as a client may have on their way that reads none.
const WINDOW: u64 = crate::flow_control::credits::COUNT_MAX;
const PATIENCE: Duration = crate::flow_control::credits::HOLD_MAX;
/// Where the configuration bounds what is in flight memory is dear, so it is worth some waiting.
/// Upstream waits for 300 s.
const PATIENCE_IF_BOUNDED: Duration = Duration::from_secs(10);

/// A version is replaced once per reload, and a reload takes far longer than a look.
const SNAPSHOTS_MAX: u32 = 8;
