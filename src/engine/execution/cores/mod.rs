//! The cores of a model version: threads that are started, served and ended together.

mod deferred_wakes;
mod orders;
pub(crate) mod plan;
mod thread;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use conch_config::Scheduling;

use crate::backend;
use crate::backend::InstanceSpec;
use crate::execution::cores::orders::{CoreOrder, OrderSender, order_channel};
pub use crate::execution::cores::plan::{InstancePlan, instance_counts};
pub(crate) use crate::execution::cores::plan::{
    WorkerSpec, active_count, shares_core, worker_specs,
};
use crate::execution::cores::thread::{WorkerReady, WorkerStart, run, thread_name};
use crate::execution::queue::ModelQueue;
use crate::execution::seat::Seat;
use crate::model::readiness::check::ReadinessCheck;
use crate::model::readiness::probe_queue::ReadinessProber;
use crate::threads::placement::Placement;
use crate::{Error, ModelVersion};

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
    /// Dropped to let a core go that does not serve, or has only passive instances.
    orders: OrderSender,
    pub(crate) specs: Vec<InstanceSpec>,
    /// Number among the cores that execute; none if all its instances are passive.
    pub(crate) index: Option<usize>,
    pub(crate) checks: Vec<Arc<dyn ReadinessCheck>>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Lets it take batches, unless its instances are passive.
    pub(crate) fn serve(&self) {
        if self.index.is_some() {
            self.orders.send(CoreOrder::Serve);
        }
    }

    /// Waits until it has ended; it has been told to.
    pub(crate) fn join(self, model: &str) {
        drop(self.orders);
        if self.thread.join().is_err() {
            conch_log::error!("a core of model '{model}' panicked outside its backend");
        }
    }
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
    let worker_specs = worker_specs(version, &instance_plan, 0)?;
    let active_count = active_count(&worker_specs);
    let made = make_cores(
        version,
        model,
        queue,
        worker_specs,
        instance_plan,
        placement,
    )?;
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

/// Starts threads that make their instances and wait to be told to serve. Blocks until all
/// instances are there and warm.
///
/// # Errors
/// As [`start_cores`].
pub(crate) fn make_cores(
    version: &Arc<ModelVersion>,
    model: &Arc<dyn backend::Model>,
    queue: &Arc<ModelQueue>,
    worker_specs: Vec<WorkerSpec>,
    instance_plan: InstancePlan,
    placement: &Placement,
) -> Result<Vec<Core>, Error> {
    let warm_up = Arc::new(instance_plan.warm_up);
    let mut cores: Vec<Core> = Vec::with_capacity(worker_specs.len());
    let mut starting = Vec::with_capacity(worker_specs.len());
    let mut outcome = Ok(());
    let progress = &instance_plan.progress;
    let total_count: usize = worker_specs
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
    for worker_spec in worker_specs {
        // With a place for the one message: sending it allocates nothing.
        let (ready_sender, ready) = mpsc::sync_channel(1);
        let (orders, ordered) = order_channel();
        let (specs, index) = (worker_spec.specs.clone(), worker_spec.index);
        let name = specs.first().map_or("", |spec| &spec.name);
        let seat = index.map(|index| seat_of(index, &specs));
        let start = WorkerStart {
            version: Arc::clone(version),
            model: Arc::clone(model),
            warm_up: Arc::clone(&warm_up),
            placement: placement.clone(),
            device_cores: Arc::clone(&instance_plan.device_cores),
        };
        let queue = Arc::clone(queue);
        let thread = std::thread::Builder::new()
            .name(thread_name(name))
            .spawn(move || run(start, worker_spec, seat, &queue, &ready_sender, &ordered))
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
                checks: Vec::new(),
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

/// A seat that the core furnishes. Made here, so that its thread need not.
fn seat_of(core: usize, specs: &[InstanceSpec]) -> Arc<Seat> {
    let names = specs.iter().map(|spec| spec.name.as_str().into());
    Arc::new(Seat::new(core, names.collect()))
}

impl Workers {
    /// Has the readiness hooks of all cores asked, if there are any.
    ///
    /// # Errors
    /// INTERNAL if that takes a thread which cannot be started.
    pub(crate) fn inspect(&mut self, version: &ModelVersion) -> Result<(), Error> {
        let checks: Vec<_> = self
            .cores
            .iter()
            .flat_map(|core| core.checks.iter().cloned())
            .collect();
        match &self.prober {
            Some(prober) => prober.check_others(checks),
            None => {
                self.prober = ReadinessProber::start(
                    &version.name,
                    version.version,
                    &version.probes,
                    checks,
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
            Ok(checks) => {
                core.checks = checks;
                count_in(core);
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

#[cfg(test)]
mod tests;
