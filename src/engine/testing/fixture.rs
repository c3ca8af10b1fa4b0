//! Shared by tests: a model from configuration text, a recording completion, drafts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use conch_config::{DataType, ResolvedConfig};
use conch_memory::ByteView;

use crate::execution::cores::{InstancePlan, instance_counts};
use crate::execution::queue::ModelQueue;
use crate::model::labels::Labels;
use crate::model::stats::ObservationOptions;
use crate::request::context::{Executor, SubmitRefusal};
use crate::request::inline::InlineOffer;
use crate::request::refusal::stopping;
use crate::threads::timer_thread::TimerThread;
use crate::{
    BatchStrategy, Completion, Delivery, Draft, DraftInput, Error, InFlightPermit, ModelVersion,
    RequestHandle, Timestamps, VersionParts, admission,
};

/// The model that `text` (config.pbtxt) describes, named `m`.
pub fn model(text: &str) -> Arc<ModelVersion> {
    model_with(text, 65_536)
}

pub fn model_with(text: &str, live_max: u64) -> Arc<ModelVersion> {
    let config = config(&format!("backend: 'fake' {text}"));
    let parts = VersionParts {
        live_max,
        ..parts("m", 1, &config)
    };
    Arc::new(ModelVersion::new(parts))
}

/// The parts of a version that nothing executes.
pub fn parts(name: &str, version: i64, config: &Arc<ResolvedConfig>) -> VersionParts {
    VersionParts {
        namespace: Arc::from(""),
        name: Arc::from(name),
        version,
        config: Arc::clone(config),
        core_count: 1,
        live_max: u64::MAX,
        requests_max: None,
        observed: ObservationOptions::default(),
        labels: Labels::default(),
        states: None,
        executor: Arc::new(NoExecutor),
    }
}

/// A version that nothing executes.
pub fn version(name: &str, version: i64, config: &Arc<ResolvedConfig>) -> Arc<ModelVersion> {
    Arc::new(ModelVersion::new(parts(name, version, config)))
}

/// The parts of the version that `text` describes, with a queue for instances like these.
pub fn queued(
    text: &str,
    instance_plan: &InstancePlan,
    strategy: Option<Box<dyn BatchStrategy>>,
    timer_thread: &Arc<TimerThread>,
) -> (VersionParts, Arc<ModelQueue>) {
    let config = config(&format!("backend: 'fake' {text}"));
    let counts = instance_counts(&instance_plan.specs, instance_plan.policy);
    let queue = ModelQueue::new(&config, &counts, Arc::clone(timer_thread), strategy)
        .expect("the test's model has a queue");
    let parts = VersionParts {
        core_count: counts.len().max(1),
        live_max: 65_536,
        executor: Arc::clone(&queue) as _,
        ..parts("m", 1, &config)
    };
    (parts, queue)
}

/// Refuses all requests.
struct NoExecutor;

impl Executor for NoExecutor {
    fn submit(&self, handle: RequestHandle, _offer: &mut InlineOffer) -> Result<(), SubmitRefusal> {
        Err(stopping(&handle))
    }

    fn is_closed(&self) -> bool {
        true
    }
}

/// The configuration that `text` describes, of a model named `m`.
pub fn config(text: &str) -> Arc<ResolvedConfig> {
    let text = format!("name: 'm' {text}");
    let mut message =
        conch_config::parse_text("config.pbtxt", &text).expect("the test's configuration parses");
    conch_config::normalize(&mut message);
    let config = ResolvedConfig::from_message(message).expect("the test's configuration is valid");
    Arc::new(config)
}

/// Remembers what was delivered.
#[derive(Default)]
pub struct Recorder {
    deliveries: Mutex<Vec<Delivery>>,
    wakes: Mutex<usize>,
    changed: Condvar,
    is_unwoken: AtomicBool,
    /// Whether it says to be on the CPU that is asked about.
    is_near: bool,
}

impl Recorder {
    /// One that says to run on whichever CPU is asked about.
    pub fn near() -> Recorder {
        Recorder {
            is_near: true,
            ..Recorder::default()
        }
    }

    /// Waits until `count` deliveries were made and takes them, in order of their slots.
    pub fn wait(&self, count: usize) -> Vec<Delivery> {
        let mut deliveries = self.wait_in_order(count);
        deliveries.sort_by_key(|delivery| delivery.slot());
        deliveries
    }

    /// Waits until `count` deliveries were made and takes them, in order of their arrival.
    pub fn wait_in_order(&self, count: usize) -> Vec<Delivery> {
        let guard = self.deliveries.lock().expect("no test panics with it");
        let (mut guard, timeout) = self
            .changed
            .wait_timeout_while(guard, Duration::from_secs(20), |deliveries| {
                deliveries.len() < count
            })
            .expect("no test panics with it");
        assert!(
            !timeout.timed_out(),
            "{} of {count} deliveries",
            guard.len()
        );
        std::mem::take(&mut *guard)
    }

    /// Waits until a wake came after the last delivery, and nothing more is to be waited for.
    pub fn wait_for_wake(&self) {
        let deliveries = self.deliveries.lock().expect("no test panics with it");
        let is_unwoken = |_: &mut Vec<Delivery>| self.is_unwoken.load(Ordering::SeqCst);
        let waited =
            self.changed
                .wait_timeout_while(deliveries, Duration::from_secs(20), is_unwoken);
        let waited = waited.expect("no test panics with it");
        assert!(!waited.1.timed_out(), "nobody woke the receiver");
    }

    pub fn wake_count(&self) -> usize {
        *self.wakes.lock().expect("no test panics with it")
    }
}

impl Completion for Recorder {
    fn deliver(&self, delivery: Delivery) {
        let mut deliveries = self.deliveries.lock().expect("no test panics with it");
        deliveries.push(delivery);
        self.is_unwoken.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    fn wake(&self) {
        *self.wakes.lock().expect("no test panics with it") += 1;
        let _deliveries = self.deliveries.lock().expect("no test panics with it");
        self.is_unwoken.store(false, Ordering::SeqCst);
        self.changed.notify_all();
    }

    fn has_waiting(&self) -> bool {
        let deliveries = self.deliveries.lock().expect("no test panics with it");
        !deliveries.is_empty()
    }

    fn is_on(&self, _cpu: usize) -> bool {
        self.is_near
    }
}

pub fn input<'a>(
    name: &'a str,
    data_type: DataType,
    shape: &[i64],
    chunks: &[&[u8]],
) -> DraftInput<'a> {
    DraftInput {
        name,
        data_type,
        shape: shape.iter().copied().collect(),
        chunks: chunks
            .iter()
            .map(|chunk| ByteView::copy_of(chunk))
            .collect(),
    }
}

/// A draft without id.
pub fn draft<'a>(inputs: Vec<DraftInput<'a>>) -> Draft<'a> {
    Draft {
        inputs: inputs.into_iter().collect(),
        ..Draft::default()
    }
}

/// Admits a request of `model`, as [`crate::Engine`] does where nothing is bounded.
///
/// # Errors
/// As [`crate::Engine::submit`].
pub fn admit(
    model: &Arc<ModelVersion>,
    mut draft: Draft<'_>,
    completion: &Arc<dyn Completion>,
    slot: u64,
    timestamps: Timestamps,
) -> Result<RequestHandle, Error> {
    let permit = InFlightPermit::new(model);
    let permit = permit.map_err(|why| admission::refuse(model, draft.id, why))?;
    admission::admit(permit, &mut draft, completion, slot, timestamps)
}
