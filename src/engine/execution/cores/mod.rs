//! Core threads: each creates its instances, drives the model's scheduler when idle, executes, and
//! at last drops its instances.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use conch_config::{InstanceKind, Scheduling};
use conch_scheduler::SchedulerOutput;
use conch_sync::{SPIN_MAX_NS, Spin};

use crate::execution::backend;
use crate::execution::backend::{ExecutionPolicy, Instance, InstanceSpec};
use crate::execution::progress::LoadProgress;
use crate::execution::queue::ModelQueue;
use crate::execution::rate_limiter::{RateLimiter, ResourceHandle};
use crate::execution::refusal::refuse;
use crate::execution::topology::Placement;
use crate::execution::warm_up::WarmUp;
use crate::model::readiness::check::ReadinessCheck;
use crate::model::readiness::probe_queue::ReadinessProber;
use crate::model::stats::FailureReason;
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::sequence::sequence_inputs::SequenceInputs;
use crate::{Batch, Error, ModelVersion, OwnedRequest, PendingResponses};

/// The running cores of one model version. [`Cores::stop`] ends them; so does dropping.
#[derive(Debug)]
pub struct Cores {
    version: Arc<ModelVersion>,
    pub(crate) queue: Arc<ModelQueue>,
    pub(crate) workers: Mutex<Workers>,
}

/// Who is there. Changed by one operation on the model at a time.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) cores: Vec<Core>,
    pub(crate) prober: Option<ReadinessProber>,
    /// The first number that no core ever had.
    pub(crate) next_index: usize,
    /// Threads that see off cores that left.
    pub(crate) drain_threads: Vec<JoinHandle<()>>,
}

/// One thread and its instances.
pub(crate) struct Core {
    pub(crate) thread: JoinHandle<()>,
    /// The first order is to serve. Dropped to let a core go that does not serve, or has only
    /// passive instances.
    orders: mpsc::Sender<()>,
    pub(crate) specs: Vec<InstanceSpec>,
    /// Number among the cores that execute; none if all its instances are passive.
    pub(crate) index: Option<usize>,
    pub(crate) checkups: Vec<Arc<dyn ReadinessCheck>>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Lets it take batches.
    pub(crate) fn serve(&self) {
        // Failure: it has ended, which is told when it is joined.
        let _ = self.orders.send(());
    }

    /// Waits until it has ended; it has been told to.
    pub(crate) fn join(self, model: &str) {
        drop(self.orders);
        if self.thread.join().is_err() {
            conch_log::error!("a core of model '{model}' panicked outside its backend");
        }
    }
}

/// The instances to be made, and how.
pub struct InstancePlan {
    pub specs: Vec<InstanceSpec>,
    pub policy: ExecutionPolicy,
    /// Instances may be created at the same time.
    pub is_parallel: bool,
    /// What each executes before it counts as created, unless it is passive.
    pub warm_up: WarmUp,
    /// Where each takes a resource handle, unless it is passive.
    pub limiter: Option<Arc<RateLimiter>>,
    /// Where to say how many are there.
    pub progress: Arc<LoadProgress>,
}

/// What one thread is to run.
pub(crate) struct WorkerSpec {
    specs: Vec<InstanceSpec>,
    /// As many as there are instances, if executions are limited and these are not passive.
    resource_handles: Vec<ResourceHandle>,
    /// Number among the cores that execute; none if all its instances are passive.
    index: Option<usize>,
}

/// Starts the threads of a model version and creates its instances, each on its own thread: one
/// thread per instance, or one per GPU under [`ExecutionPolicy::DeviceBlocking`]. Blocks until all
/// are there and warm. They drive `queue`, which was made for as many of them
/// ([`instance_counts`]).
///
/// # Errors
/// The first failure to create an instance or to warm it up (the others are dropped again), or a
/// configuration that cannot be honoured.
pub fn start_cores(
    version: &Arc<ModelVersion>,
    queue: &Arc<ModelQueue>,
    model: &Arc<dyn backend::Model>,
    instance_plan: InstancePlan,
    placement: &Placement,
) -> Result<Cores, Error> {
    let rosters = rosters(version, &instance_plan, 0)?;
    let active_count = active_count(&rosters);
    let made = make_cores(version, model, queue, rosters, instance_plan, placement)?;
    if matches!(version.config.scheduling, Scheduling::Dynamic(_)) {
        // There is no such thread, the cores batch; but these are the words by which people see
        // that a model batches.
        let name = &version.name;
        conch_log::verbose!(
            1,
            "Starting dynamic-batcher thread for {name} at default nice..."
        );
    }
    // On the way out by an error the cores end as they are dropped.
    let cores = Cores {
        version: Arc::clone(version),
        queue: Arc::clone(queue),
        workers: Mutex::new(Workers {
            cores: made,
            prober: None,
            next_index: active_count,
            drain_threads: Vec::new(),
        }),
    };
    cores.workers().inspect(version)?;
    cores.workers().cores.iter().for_each(Core::serve);
    Ok(cores)
}

/// How many of them execute.
pub(crate) fn active_count(rosters: &[WorkerSpec]) -> usize {
    let executes = |worker_spec: &&WorkerSpec| worker_spec.index.is_some();
    rosters.iter().filter(executes).count()
}

/// Starts threads that make their instances and wait to be told to serve. Blocks until all
/// instances are there and warm.
///
/// # Errors
/// As [`start_cores`].
pub(crate) fn make_cores(
    version: &Arc<ModelVersion>,
    model: &Arc<dyn backend::Model>,
    queue: &Arc<ModelQueue>,
    rosters: Vec<WorkerSpec>,
    instance_plan: InstancePlan,
    placement: &Placement,
) -> Result<Vec<Core>, Error> {
    let warm_up = Arc::new(instance_plan.warm_up);
    let mut cores: Vec<Core> = Vec::with_capacity(rosters.len());
    let mut starting = Vec::with_capacity(rosters.len());
    let mut outcome = Ok(());
    let progress = &instance_plan.progress;
    let total_count: usize = rosters
        .iter()
        .map(|worker_spec| worker_spec.specs.len())
        .sum();
    let mut ready_count = 0;
    let mut count_in = |core: &Core| {
        ready_count += core.specs.len();
        progress.reach(format_args!(
            "{ready_count} of {total_count} instances are ready"
        ));
    };
    progress.reach(format_args!("0 of {total_count} instances are ready"));
    for worker_spec in rosters {
        let (ready_sender, ready) = mpsc::channel();
        let (orders, ordered) = mpsc::channel();
        let (specs, index) = (worker_spec.specs.clone(), worker_spec.index);
        let name = specs.first().map_or("", |spec| &spec.name);
        let start = WorkerStart {
            version: Arc::clone(version),
            model: Arc::clone(model),
            warm_up: Arc::clone(&warm_up),
            placement: placement.clone(),
        };
        let queue = Arc::clone(queue);
        let thread = std::thread::Builder::new()
            .name(thread_name(name))
            .spawn(move || run(start, worker_spec, &queue, &ready_sender, &ordered))
            .map_err(|error| {
                Error::internal(format!(
                    "failed to start a thread for instance '{name}': {error}"
                ))
            });
        match thread {
            Ok(thread) => cores.push(Core {
                thread,
                orders,
                specs,
                index,
                checkups: Vec::new(),
            }),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
        starting.push(ready);
        if !instance_plan.is_parallel {
            outcome = await_ready(&mut cores, &mut starting, &mut count_in);
            if outcome.is_err() {
                break;
            }
        }
    }
    outcome = outcome.and(await_ready(&mut cores, &mut starting, &mut count_in));
    match outcome {
        Ok(()) => Ok(cores),
        Err(error) => {
            cores.into_iter().for_each(|core| core.join(&version.name));
            Err(error)
        }
    }
}

impl Workers {
    /// Has the readiness hooks of all cores asked, if there are any.
    ///
    /// # Errors
    /// INTERNAL if that takes a thread which cannot be started.
    pub(crate) fn inspect(&mut self, version: &ModelVersion) -> Result<(), Error> {
        let checkups: Vec<_> = self
            .cores
            .iter()
            .flat_map(|core| core.checkups.iter().cloned())
            .collect();
        match &self.prober {
            Some(prober) => prober.ask_others(checkups),
            None => {
                self.prober = ReadinessProber::start(
                    &version.name,
                    version.version,
                    &version.probes,
                    checkups,
                )?;
            }
        }
        Ok(())
    }
}

impl Cores {
    /// What they drive.
    pub fn queue(&self) -> &Arc<ModelQueue> {
        &self.queue
    }

    /// Refuses new requests, executes what is queued, drops the instances on their threads and
    /// waits for all that. Blocks as long as the backend executes.
    pub fn stop(&self) {
        self.queue.close();
        let mut workers = self.workers();
        // It asks instances that go now.
        let prober = workers.prober.take();
        let cores = std::mem::take(&mut workers.cores);
        let drain_threads = std::mem::take(&mut workers.drain_threads);
        drop(workers);
        drop(prober);
        let threads: Vec<JoinHandle<()>> = cores.into_iter().map(|core| core.thread).collect();
        // The orders are dropped, so all end at the same time.
        for thread in threads.into_iter().chain(drain_threads) {
            if thread.join().is_err() {
                conch_log::error!(
                    "a core of model '{}' panicked outside its backend",
                    self.version.name
                );
            }
        }
    }

    /// Refuses new requests without waiting, but those of sequences under way: these may end while
    /// anything is in flight. What is queued is still executed.
    pub fn close(&self) {
        match self.version.config.scheduling {
            Scheduling::Sequence(_) => self.queue.refuse_starts(),
            _ => self.queue.close(),
        }
    }

    /// How many threads there are.
    pub fn thread_count(&self) -> usize {
        self.workers().cores.len()
    }

    pub(crate) fn workers(&self) -> MutexGuard<'_, Workers> {
        // Changed by pushes and removals only.
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How many instances each of the threads has that execute instances of these `specs`, in order of
/// their first.
pub fn instance_counts(specs: &[InstanceSpec], policy: ExecutionPolicy) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut by_device: BTreeMap<i32, usize> = BTreeMap::new();
    for spec in specs.iter().filter(|spec| !spec.is_passive) {
        let new_place = counts.len();
        let place = match shares_thread(spec, policy) {
            true => *by_device.entry(spec.device_id).or_insert(new_place),
            false => new_place,
        };
        match counts.get_mut(place) {
            Some(count) => *count += 1,
            None => counts.push(1),
        }
    }
    counts
}

/// Which instances share a thread, in order of their first, with their instances. Those that
/// execute are numbered from `first_index` on.
///
/// # Errors
/// INVALID_ARG if the limiter could never let one execute.
pub(crate) fn rosters(
    version: &ModelVersion,
    instance_plan: &InstancePlan,
    first_index: usize,
) -> Result<Vec<WorkerSpec>, Error> {
    let mut rosters: Vec<WorkerSpec> = Vec::new();
    let mut by_device: BTreeMap<i32, usize> = BTreeMap::new();
    let mut next_index = first_index;
    for spec in &instance_plan.specs {
        let is_shared = shares_thread(spec, instance_plan.policy);
        let known = by_device.get(&spec.device_id).filter(|_| is_shared);
        let place = match known {
            Some(place) => *place,
            None => {
                let index = (!spec.is_passive).then_some(next_index);
                next_index += usize::from(index.is_some());
                rosters.push(WorkerSpec {
                    specs: Vec::new(),
                    resource_handles: Vec::new(),
                    index,
                });
                rosters.len() - 1
            }
        };
        if is_shared {
            by_device.insert(spec.device_id, place);
        }
        let Some(worker_spec) = rosters.get_mut(place) else {
            continue;
        };
        if let Some(limiter) = instance_plan.limiter.as_ref().filter(|_| !spec.is_passive) {
            worker_spec
                .resource_handles
                .push(limiter.handle_for(version, spec)?);
        }
        worker_spec.specs.push(spec.clone());
    }
    Ok(rosters)
}

/// Whether the instances of its device share one thread.
pub(crate) fn shares_thread(spec: &InstanceSpec, policy: ExecutionPolicy) -> bool {
    policy == ExecutionPolicy::DeviceBlocking && spec.kind == InstanceKind::Gpu && !spec.is_passive
}

/// At most 15 bytes, the system's limit; the end of an instance's name tells it from the others.
fn thread_name(instance: &str) -> String {
    const NAME_BYTES_MAX: usize = 15;
    let mut start = instance.len().saturating_sub(NAME_BYTES_MAX);
    while !instance.is_char_boundary(start) {
        start += 1;
    }
    instance[start..].replace('\0', "")
}

/// What a core says when its instances are there: their readiness hooks.
type WorkerReady = Result<Vec<Arc<dyn ReadinessCheck>>, Error>;

/// Waits for those that start, which are the last of `cores`.
fn await_ready(
    cores: &mut [Core],
    starting: &mut Vec<mpsc::Receiver<WorkerReady>>,
    mut count_in: impl FnMut(&Core),
) -> Result<(), Error> {
    let first = cores.len().saturating_sub(starting.len());
    let mut outcome = Ok(());
    for (core, ready) in cores.iter_mut().skip(first).zip(starting.drain(..)) {
        let ready = ready.recv().unwrap_or_else(|_| {
            Err(Error::internal(
                "the thread of an instance ended before it was ready",
            ))
        });
        match ready {
            Ok(checkups) => {
                core.checkups = checkups;
                count_in(core);
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

/// What a core needs to make its instances.
struct WorkerStart {
    version: Arc<ModelVersion>,
    model: Arc<dyn backend::Model>,
    warm_up: Arc<WarmUp>,
    placement: Placement,
}

/// The life of a core thread.
fn run(
    start: WorkerStart,
    worker_spec: WorkerSpec,
    queue: &Arc<ModelQueue>,
    ready: &mpsc::Sender<WorkerReady>,
    ordered: &mpsc::Receiver<()>,
) {
    let placement = &start.placement;
    placement.apply();
    let WorkerSpec {
        specs,
        mut resource_handles,
        index,
    } = worker_spec;
    // Instances that share a thread are of one device, and with it of one policy.
    let policy = specs.first().map_or("", |spec| &spec.host_policy);
    if let Err(error) = placement.host_policies.bind_current_thread(policy) {
        // Failure: the starter is gone, and with it the interest.
        let _ = ready.send(Err(error));
        return;
    }
    let mut instances: Vec<Box<dyn Instance>> = Vec::with_capacity(specs.len());
    for (place, spec) in specs.iter().enumerate() {
        if let Err(error) = start.create(spec, resource_handles.get_mut(place), &mut instances) {
            drop_instances(instances);
            // Failure: the starter is gone, and with it the interest.
            let _ = ready.send(Err(error));
            return;
        }
    }
    let spin = if placement.spins {
        Spin::up_to(SPIN_MAX_NS)
    } else {
        Spin::OFF
    };
    let checkups = instances
        .iter()
        .filter_map(|instance| instance.readiness_check());
    let _ = ready.send(Ok(checkups.collect()));
    let sequence_inputs =
        index.and_then(|core| SequenceInputs::new(&start.version, core, instances.len()));
    // The samples' bytes are needed no more.
    drop(start);
    match index {
        Some(index) if ordered.recv().is_ok() => {
            let worker = queue.worker(index, spin);
            serve(
                queue,
                worker,
                &mut instances,
                &mut resource_handles,
                sequence_inputs,
            );
        }
        // Others were made beside a failure.
        Some(_) => {}
        // Passive: kept, never asked.
        None => while ordered.recv().is_ok() {},
    }
    drop_instances(instances);
}

impl WorkerStart {
    /// Makes an instance and warms it up.
    fn create(
        &self,
        spec: &InstanceSpec,
        mut resources: Option<&mut ResourceHandle>,
        instances: &mut Vec<Box<dyn Instance>>,
    ) -> Result<(), Error> {
        let created = catch_unwind(AssertUnwindSafe(|| {
            Arc::clone(&self.model).create_instance(spec.clone())
        }));
        let mut instance = created.unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        let warmed_up = if spec.is_passive {
            Ok(())
        } else {
            let mut pending = PendingResponses::default();
            self.warm_up.run(&self.version, &spec.name, |batch| {
                if let Some(resources) = &mut resources {
                    resources.acquire();
                }
                execute(&mut *instance, batch, &mut pending);
                if let Some(resources) = &mut resources {
                    resources.release_after_warm_up();
                }
            })
        };
        // Kept also if that failed, to be dropped with the others.
        instances.push(instance);
        warmed_up
    }
}

/// Executes batches until the queue is closed and drained, or lets this core go. Several instances
/// take turns, unless the batch says which it is for.
fn serve(
    queue: &Arc<ModelQueue>,
    mut worker: conch_sync::Worker,
    instances: &mut [Box<dyn Instance>],
    resource_handles: &mut [ResourceHandle],
    mut sequence_inputs: Option<SequenceInputs>,
) {
    let mut output: SchedulerOutput<OwnedRequest> = SchedulerOutput::default();
    let mut pending = PendingResponses::default();
    let mut next = 0;
    loop {
        // A batch of sequences is one instance's alone: it is formed first, then waits for the
        // instance's turn.
        let resources = match sequence_inputs {
            None => resource_handles.get_mut(next),
            Some(_) => None,
        };
        if !queue.next(&mut worker, resources, &mut output, &mut pending) {
            break;
        }
        if let Some(sequence_inputs) = &mut sequence_inputs {
            sequence_inputs.prepare(&mut output);
            next = output.instance;
            if let Some(resources) = resource_handles.get_mut(next) {
                resources.acquire();
            }
        }
        if let Some(instance) = instances.get_mut(next) {
            execute(&mut **instance, &mut output.batch, &mut pending);
        }
        if (resource_handles.len() > 1 || sequence_inputs.is_some())
            && let Some(resources) = resource_handles.get_mut(next)
        {
            // The next turn is another instance's.
            resources.release(true);
        }
        next = (next + 1) % instances.len().max(1);
    }
}

/// One execution. A panic in the backend's adapter fails what is left of the batch, not the core.
fn execute(instance: &mut dyn Instance, batch: &mut Batch, pending: &mut PendingResponses) {
    if request_log::is_shown() {
        for live in batch.iter().filter(|live| !live.is_null) {
            let id = &live.shared().id;
            request_log::note(id, RequestState::Pending, RequestState::Executing);
        }
    }
    let executed = catch_unwind(AssertUnwindSafe(|| instance.execute(batch, pending)));
    if !batch.is_empty() {
        let error = match executed {
            Ok(()) => Error::internal("the instance left the request unanswered"),
            Err(panic) => panicked(&*panic),
        };
        conch_log::error!("an execution failed: {}", error.message);
        for live in batch.drain(..) {
            refuse(live, FailureReason::Other, error.clone(), pending);
        }
    } else if let Err(panic) = executed {
        conch_log::error!("an execution failed: {}", panicked(&*panic).message);
    }
    pending.flush();
}

/// Drops one by one, so that a panic in one does not keep the others.
fn drop_instances(instances: Vec<Box<dyn Instance>>) {
    for instance in instances {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(instance))) {
            conch_log::error!("an instance failed to end: {}", panicked(&*panic).message);
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let words = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::internal(format!(
        "panic in the backend: {}",
        words.unwrap_or("without a message")
    ))
}

#[cfg(test)]
mod tests;
