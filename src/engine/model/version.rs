//! One loaded version of a model, as the data plane sees it, and the permits of its requests.
//!
//! A version takes requests, and these and their responses refer to it: `version`, `context` and
//! `response` import one another.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use conch_config::InstanceKind;
use conch_memory::Pool;

use crate::Error;
use crate::clock::epoch_ms;
use crate::gpus::GpuHost;
use crate::limits::Permit;
use crate::model::admission_plan::{AdmissionPlan, preserves_order};
use crate::model::labels::Labels;
use crate::model::level_bounds::LevelBounds;
use crate::model::readiness::probe_queue::ProbeQueue;
use crate::model::sequence_ids::SequenceIds;
use crate::model::states::InitialStates;
use crate::model::stats::{ModelStatistics, ObservationOptions, RefusalReason, Statistics, Totals};
use crate::request::context::{Executor, ExecutorUsage};
use crate::request::instance_timeline::InstanceTimeline;
use crate::request::messages::full;

/// A model version with its configuration, queue and statistics. Shared by registry snapshots,
/// requests and cores.
pub struct ModelVersion {
    /// Empty unless the server tells models of the same name in different repositories apart.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub version: i64,
    pub config: Arc<conch_config::ResolvedConfig>,
    /// The configuration as it was changed while the version served: other instances, another
    /// version policy.
    reported: ArcSwapOption<conch_config::ResolvedConfig>,
    pub statistics: Statistics,
    /// How long its load took; 0 until it is ready.
    load_duration_ns: AtomicU64,
    created_ms: u64,
    /// Live requests, [`PIN`] for each who pins the version, and [`RETIRED`] once no more may
    /// enter.
    live: AtomicU64,
    /// Bound of the live requests: of the queue, or of the crowd if that is lower.
    live_max: u64,
    /// One more than so many is not too much for the queue, but more than is wanted.
    requests_max: u64,
    /// The thread that waits for the last request of a retired version. Locked by it, and at the
    /// end of that request.
    drain_waiter: Mutex<Option<Thread>>,
    prior_totals: Mutex<PriorTotals>,
    /// Its last request is over, and its instances are gone.
    is_gone: AtomicBool,
    /// What admission needs of the configuration, worked out once.
    pub(crate) plan: AdmissionPlan,
    /// Bounds of the queue policy.
    pub(crate) bounds: LevelBounds,
    /// Names of classes.
    pub(crate) labels: Labels,
    /// Ids of its sequences that have none of their own.
    pub(crate) sequence_names: SequenceIds,
    /// What its sequences' implicit states begin with, and where their buffers come from, if it has
    /// any.
    pub states: Option<(InitialStates, Arc<Pool>)>,
    /// Where the readiness hooks of its instances are asked, if its backend has one.
    pub probes: Arc<ProbeQueue>,
    /// What executes its requests.
    pub(crate) executor: Arc<dyn Executor>,
}

/// What a [`ModelVersion`] is made of.
pub struct VersionParts {
    /// Empty unless the server tells models of the same name in different repositories apart.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub version: i64,
    pub config: Arc<conch_config::ResolvedConfig>,
    /// How many threads will execute it.
    pub core_count: usize,
    /// How many requests its queue may hold.
    pub live_max: u64,
    /// Bounds its live requests as all models' are, unless its configuration does.
    pub requests_max: Option<u64>,
    pub observed: ObservationOptions,
    pub labels: Labels,
    pub states: Option<(InitialStates, Arc<Pool>)>,
    pub executor: Arc<dyn Executor>,
}

impl ModelVersion {
    /// A version that takes requests as soon as its executor does.
    pub fn new(parts: VersionParts) -> ModelVersion {
        let config = parts.config;
        let requests_max = config.own.requests_max.or(parts.requests_max);
        let requests_max = requests_max.unwrap_or(u64::MAX);
        ModelVersion {
            namespace: parts.namespace,
            name: parts.name,
            version: parts.version,
            statistics: Statistics::new(
                parts.core_count,
                config.max_batch_size,
                parts.observed,
                conch_config::first_response_buckets(&config.message)
                    .unwrap_or(&FIRST_RESPONSE_BOUNDS_MS),
            ),
            reported: ArcSwapOption::empty(),
            load_duration_ns: AtomicU64::new(0),
            created_ms: epoch_ms(),
            live: AtomicU64::new(0),
            live_max: parts.live_max.min(requests_max),
            requests_max,
            drain_waiter: Mutex::default(),
            prior_totals: Mutex::default(),
            is_gone: AtomicBool::new(false),
            plan: AdmissionPlan::new(&config),
            bounds: LevelBounds::new(&config),
            labels: parts.labels,
            sequence_names: SequenceIds::default(),
            states: parts.states,
            probes: Arc::default(),
            executor: parts.executor,
            config,
        }
    }

    pub(crate) fn requests_max(&self) -> u64 {
        self.requests_max
    }

    /// Whether it has a limit of its own, beside the bound of its queue.
    pub fn limits_requests(&self) -> bool {
        self.requests_max != u64::MAX
    }

    /// Why there is no place beside `live_count` requests.
    fn no_place_beside(&self, live_count: u64) -> Rejected {
        if live_count >= self.requests_max {
            Rejected::OverModelLimit
        } else {
            Rejected::Full
        }
    }

    /// The configuration for whoever asks for it; `config` is what requests go by.
    pub fn reported_config(&self) -> Arc<conch_config::ResolvedConfig> {
        let reported = self.reported.load_full();
        reported.unwrap_or_else(|| Arc::clone(&self.config))
    }

    /// Shows another configuration, which agrees with `config` in all that requests depend on.
    pub fn set_reported_config(&self, config: Arc<conch_config::ResolvedConfig>) {
        self.reported.store(Some(config));
    }

    /// Everything it counted, with its name.
    pub fn model_statistics(&self) -> ModelStatistics {
        let totals = self.statistics.totals();
        ModelStatistics {
            name: Arc::clone(&self.name),
            version: self.version,
            last_inference_ms: totals.last_inference_ms,
            inference_count: totals.inference_count,
            execution_count: totals.execution_count,
            inference: totals.inference,
            responses: totals.responses.into_iter().collect(),
            batches: totals.batches.into_values().collect(),
            memory_usage: totals.memory_usage,
        }
    }

    /// Whether its responses leave in the order of its requests.
    pub fn preserves_order(&self) -> bool {
        preserves_order(&self.config)
    }

    /// Names of the classes of its outputs.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The name of a class of an output.
    pub fn label(&self, output: &str, class: usize) -> Option<&CStr> {
        self.labels.label(output, class)
    }

    /// How many of its sequences take requests; none if that cannot be seen right now.
    pub fn sequence_count(&self) -> Option<usize> {
        self.executor.sequence_count()
    }

    /// Who executes its requests now.
    pub fn usage(&self) -> ExecutorUsage {
        self.executor.usage()
    }

    /// What its instances did in the last second. They are watched from then on, until
    /// [`ModelVersion::end_watch`]; one thread may do so.
    pub fn timelines(&self) -> Vec<InstanceTimeline> {
        self.executor.timelines()
    }

    pub fn end_watch(&self) {
        self.executor.end_watch();
    }

    /// Whether it takes no more requests, or none that start anything.
    pub fn is_closed(&self) -> bool {
        self.executor.is_closed()
    }

    /// Why it does not serve any more although it is loaded: a device does not answer, or is
    /// broken.
    pub fn fault(&self) -> Option<Error> {
        self.executor.fault().or_else(|| self.device_fault())
    }

    fn device_fault(&self) -> Option<Error> {
        let groups = self.config.instance_groups.iter();
        let mut gpus = groups
            .filter(|group| group.kind == InstanceKind::Gpu)
            .flat_map(|group| &group.gpus);
        gpus.find_map(|id| GpuHost::fault_of(*id))
    }

    /// How long loading took; zero until it is ready.
    pub fn load_duration(&self) -> Duration {
        Duration::from_nanos(self.load_duration_ns.load(Ordering::Relaxed))
    }

    pub fn set_load_duration(&self, duration: Duration) {
        self.load_duration_ns.store(
            u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Requests that were admitted and are not finished: queued, executing or answering.
    pub fn live_count(&self) -> u64 {
        self.live.load(Ordering::Acquire) & COUNT_MASK
    }

    fn drain_waiter(&self) -> MutexGuard<'_, Option<Thread>> {
        self.drain_waiter
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Undoes what a place or a pin has added to `live`.
    fn release_count(&self, amount: u64) {
        // Release pairs with the Acquire of `live_count`: who sees none left sees what the last one
        // did.
        let before = self.live.fetch_sub(amount, Ordering::Release);
        if before == RETIRED + amount
            && let Some(drain_waiter) = &*self.drain_waiter()
        {
            drain_waiter.unpark();
        }
    }

    /// Lets no more requests in: whoever still holds this version looks for its successor. Does not
    /// block.
    pub fn retire(&self) {
        // Either a request is counted before this, or it sees the mark.
        self.live.fetch_or(RETIRED, Ordering::AcqRel);
    }

    /// Whether it lets no more requests in.
    pub(crate) fn is_retired(&self) -> bool {
        // Acquire: who sees the mark sees what the registry showed before.
        self.live.load(Ordering::Acquire) & RETIRED != 0
    }

    /// [`ModelVersion::retire`] if no request is live and nobody pins it; false if one is, or if it
    /// is retired already.
    pub fn retire_if_idle(&self) -> bool {
        self.live
            .compare_exchange(0, RETIRED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes [`ModelVersion::retire_if_idle`] back: it has not left the registry.
    pub fn revive(&self) {
        self.live.fetch_and(!RETIRED, Ordering::AcqRel);
    }

    /// Whether no request is live, and nobody pins it.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.live.load(Ordering::Acquire) & !RETIRED == 0
    }

    /// When it was used last, or made, ms since the epoch.
    pub fn last_used_ms(&self) -> u64 {
        self.statistics
            .totals()
            .last_inference_ms
            .max(self.created_ms)
    }

    /// Waits until no request of a retired version is live, and nobody pins it. One thread at most
    /// does so.
    pub fn await_last_request(&self) {
        *self.drain_waiter() = Some(thread::current());
        while self.live.load(Ordering::Acquire) & !RETIRED > 0 {
            // Woken by the last request; the bound only covers one that ended between the look and
            // the registration.
            thread::park_timeout(DRAIN_CHECK_INTERVAL);
        }
    }
}

/// What was counted by those whose places a version took, for metrics: their counters go on through
/// a reload, as upstream's do.
#[derive(Default)]
struct PriorTotals {
    /// Of those that are gone.
    totals: Totals,
    /// Those that still finish requests, the last one and such as an earlier one left: they may go
    /// in any order.
    predecessors: Vec<Arc<ModelVersion>>,
}

impl PriorTotals {
    /// Takes over the numbers of predecessors that are gone, and who was theirs.
    fn absorb_gone(&mut self) {
        let mut index = 0;
        while let Some(predecessor) = self.predecessors.get(index) {
            if !predecessor.is_gone.load(Ordering::Acquire) {
                index += 1;
                continue;
            }
            let predecessor = self.predecessors.swap_remove(index);
            self.totals.include(&predecessor.statistics.totals());
            // From the newer to the older: nobody locks the other way.
            let theirs = std::mem::take(&mut *predecessor.prior_totals());
            self.totals.include(&theirs.totals);
            self.predecessors.extend(theirs.predecessors);
        }
    }
}

impl ModelVersion {
    /// Counts on from `predecessor`, which is being replaced.
    pub fn succeed(&self, predecessor: &Arc<ModelVersion>) {
        self.statistics.succeed(&predecessor.statistics);
        let mut prior_totals = self.prior_totals();
        prior_totals.predecessors.push(Arc::clone(predecessor));
        prior_totals.absorb_gone();
    }

    /// It counts nothing any more: whoever took its place may take over its numbers.
    pub fn mark_gone(&self) {
        // Release: who sees it sees all that was counted.
        self.is_gone.store(true, Ordering::Release);
    }

    /// Of predecessors that are gone only the numbers are kept.
    pub fn inherit(&self) {
        self.prior_totals().absorb_gone();
    }

    /// What metrics show: own counts and those of all predecessors.
    pub fn metric_totals(&self) -> Totals {
        let mut totals = self.statistics.totals();
        let mut prior_totals = self.prior_totals();
        prior_totals.absorb_gone();
        totals.include(&prior_totals.totals);
        for predecessor in &prior_totals.predecessors {
            totals.include(&predecessor.metric_totals());
        }
        totals
    }

    /// Requests that were admitted and are not finished, also of predecessors.
    pub fn in_flight_count(&self) -> u64 {
        let mut prior_totals = self.prior_totals();
        prior_totals.absorb_gone();
        let predecessors = prior_totals.predecessors.iter();
        let theirs: u64 = predecessors
            .map(|predecessor| predecessor.in_flight_count())
            .sum();
        self.live_count() + theirs
    }

    fn prior_totals(&self) -> MutexGuard<'_, PriorTotals> {
        self.prior_totals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a request did not get a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// As many requests are live as the queue may hold.
    Full,
    /// As many as are wanted of this model at a time.
    OverModelLimit,
    /// The version is on its way out: another, or none, has taken its place in the registry.
    Retired,
}

/// Buckets of the histogram of first responses, where the configuration chooses none. As upstream.
const FIRST_RESPONSE_BOUNDS_MS: [f64; 4] = [100.0, 500.0, 2000.0, 5000.0];

/// Bit of `live`. Below are the pins, and then the live requests; both counts stay far below their
/// bounds.
const RETIRED: u64 = 1 << 63;
const PIN: u64 = 1 << 32;
const COUNT_MASK: u64 = PIN - 1;
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A model together with a place among its live requests, which is freed on drop at the latest.
#[derive(Debug)]
pub struct InFlightPermit {
    model: Arc<ModelVersion>,
    /// Where the admission limits of the server count it, if there are any.
    permit: Option<Permit>,
    is_freed: AtomicBool,
}

impl InFlightPermit {
    /// A place in `model`.
    ///
    /// # Errors
    /// If the model has as many live requests as it may, or takes no more.
    pub fn new(model: &Arc<ModelVersion>) -> Result<InFlightPermit, Rejected> {
        let before = model.live.fetch_add(1, Ordering::Acquire);
        // Acquire: who sees the mark sees what the registry showed before. Counted at once, so that
        // both ways out give the place back.
        let permit = InFlightPermit {
            model: Arc::clone(model),
            permit: None,
            is_freed: AtomicBool::new(false),
        };
        if before & RETIRED != 0 {
            return Err(Rejected::Retired);
        }
        let before = before & COUNT_MASK;
        if before >= model.live_max {
            return Err(model.no_place_beside(before));
        }
        Ok(permit)
    }

    /// No place at all, for a request that nobody sent: whoever made it waits for it.
    pub(crate) fn uncounted(model: &Arc<ModelVersion>) -> InFlightPermit {
        InFlightPermit {
            model: Arc::clone(model),
            permit: None,
            is_freed: AtomicBool::new(true),
        }
    }

    /// Keeps `permit` for as long as the place.
    pub fn carry(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Frees the place of a request that is over, although something still refers to it, such as a
    /// response factory that its backend never deletes.
    pub fn free(&self) {
        // Relaxed: only who frees goes on; the place itself is ordered below.
        if self.is_freed.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(permit) = &self.permit {
            permit.release();
        }
        self.model.release_count(1);
    }
}

/// Keeps a version in service for who will send it requests: an ensemble's request. It takes no
/// place among them.
pub(crate) struct Pin {
    model: Arc<ModelVersion>,
}

impl Pin {
    /// # Errors
    /// [`Rejected::Retired`].
    pub(crate) fn new(model: &Arc<ModelVersion>) -> Result<Pin, Rejected> {
        // Acquire: as a reservation.
        let before = model.live.fetch_add(PIN, Ordering::Acquire);
        let pin = Pin {
            model: Arc::clone(model),
        };
        if before & RETIRED != 0 {
            return Err(Rejected::Retired);
        }
        Ok(pin)
    }

    pub(crate) fn version(&self) -> &Arc<ModelVersion> {
        &self.model
    }

    /// Whether the version is retired, and nothing but this keeps it.
    pub(crate) fn is_last(&self) -> bool {
        // Acquire pairs with the Release of `give_back`.
        self.model.live.load(Ordering::Acquire) == RETIRED + PIN
    }

    /// A place in the model, also if it takes no more: this keeps it.
    ///
    /// # Errors
    /// If the model has as many live requests as it may.
    pub(crate) fn reserve(&self) -> Result<InFlightPermit, Rejected> {
        // Relaxed: it is ordered by what made the pin.
        let before = self.model.live.fetch_add(1, Ordering::Relaxed) & COUNT_MASK;
        let permit = InFlightPermit {
            model: Arc::clone(&self.model),
            permit: None,
            is_freed: AtomicBool::new(false),
        };
        if before >= self.model.live_max {
            return Err(self.model.no_place_beside(before));
        }
        Ok(permit)
    }
}

impl std::ops::Deref for Pin {
    type Target = Arc<ModelVersion>;

    fn deref(&self) -> &Arc<ModelVersion> {
        &self.model
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.model.release_count(PIN);
    }
}

impl std::ops::Deref for InFlightPermit {
    type Target = Arc<ModelVersion>;

    fn deref(&self) -> &Arc<ModelVersion> {
        &self.model
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.free();
    }
}

/// A request's place among those that wait: in the pending gauge and under its level's bound. Freed
/// on drop, which is when the request joins a batch or whoever claimed it drops it.
pub struct PendingPermit {
    model: Arc<ModelVersion>,
    level: u64,
}

impl PendingPermit {
    /// A place for request `id` at `level`.
    ///
    /// # Errors
    /// UNAVAILABLE if the level is full. Not counted as a failure, as upstream counts none that was
    /// never queued.
    pub(crate) fn enter(
        model: &Arc<ModelVersion>,
        id: &str,
        level: u64,
    ) -> Result<PendingPermit, Error> {
        if !model.bounds.try_enter(level) {
            model.statistics.report_refusal(RefusalReason::QueueFull);
            return Err(full(id));
        }
        model.statistics.add_pending();
        Ok(PendingPermit {
            model: Arc::clone(model),
            level,
        })
    }
}

impl Drop for PendingPermit {
    fn drop(&mut self) {
        self.model.statistics.remove_pending(1);
        self.model.bounds.release(self.level);
    }
}

impl std::fmt::Debug for ModelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelVersion")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish()
    }
}
