//! Core threads: each creates its instances, drives the model's scheduler when idle, executes, and at last drops its instances.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use conch_channel::{SPIN_MAX_NS, Spin};
use conch_config::InstanceKind;

use crate::backend::{Checkup, ExecutionPolicy, Instance, InstanceSpec};
use crate::queue::{Queue, refuse};
use crate::rate::{Limiter, Seat};
use crate::readiness::Inspector;
use crate::scheduler::Harvest;
use crate::sequence::Attendant;
use crate::stats::Failure;
use crate::topology::Placement;
use crate::warm_up::WarmUp;
use crate::{Batch, Departures, Error, Live, ModelVersion, backend};

/// The running cores of one model version. [`Cores::stop`] ends them; so does dropping.
#[derive(Debug)]
pub struct Cores {
    version: Arc<ModelVersion>,
    queue: Arc<Queue>,
    threads: Vec<Core>,
    inspector: Option<Inspector>,
}

#[derive(Debug)]
struct Core {
    thread: JoinHandle<()>,
    /// Dropped to let a core go that has only passive instances.
    _release: mpsc::Sender<()>,
}

/// The instances to be made, and how.
pub(crate) struct Lineup {
    pub(crate) specs: Vec<InstanceSpec>,
    pub(crate) policy: ExecutionPolicy,
    /// Instances may be created at the same time.
    pub(crate) is_parallel: bool,
    /// What each executes before it counts as created, unless it is passive.
    pub(crate) warm_up: WarmUp,
    /// Where each takes a seat, unless it is passive.
    pub(crate) limiter: Option<Arc<Limiter>>,
}

/// What one thread is to run.
struct Roster {
    specs: Vec<InstanceSpec>,
    /// As many as there are instances, if executions are limited and these are not passive.
    seats: Vec<Seat>,
    /// Number among the cores that execute; none if all its instances are passive.
    index: Option<usize>,
}

/// Starts the threads of a model version and creates its instances, each on its own thread: one thread per instance, or one per GPU under
/// [`ExecutionPolicy::DeviceBlocking`]. Blocks until all are there and warm; the version then takes requests.
///
/// # Errors
/// The first failure to create an instance or to warm it up (the others are dropped again), or a configuration that cannot be honoured.
pub(crate) fn start_cores(
    version: &Arc<ModelVersion>,
    model: &Arc<dyn backend::Model>,
    lineup: Lineup,
    placement: &Placement,
) -> Result<Cores, Error> {
    let Lineup {
        specs,
        policy,
        is_parallel,
        warm_up,
        limiter,
    } = lineup;
    let warm_up = Arc::new(warm_up);
    let mut rosters = rosters(specs, policy);
    if let Some(limiter) = &limiter {
        for roster in rosters.iter_mut().filter(|roster| roster.index.is_some()) {
            let seat = |spec: &InstanceSpec| limiter.seat(&spec.rate_limit, spec.device_id);
            roster.seats = roster.specs.iter().map(seat).collect::<Result<_, _>>()?;
        }
    }
    let active = rosters.iter().filter(|roster| roster.index.is_some());
    let instance_counts: Vec<usize> = active.map(|roster| roster.specs.len()).collect();
    let queue = Arc::new(Queue::new(
        &version.config,
        &instance_counts,
        Arc::clone(&placement.timekeeper),
        model.batch_strategy(),
    )?);
    let mut cores = Cores {
        version: Arc::clone(version),
        queue: Arc::clone(&queue),
        threads: Vec::with_capacity(rosters.len()),
        inspector: None,
    };
    let mut starting = Vec::with_capacity(rosters.len());
    let mut outcome = Ok(());
    let mut checkups = Vec::new();
    for roster in rosters {
        let (ready_sender, ready) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let name = roster
            .specs
            .first()
            .map_or_else(String::new, |spec| spec.name.clone());
        let start = Start {
            version: Arc::clone(version),
            model: Arc::clone(model),
            warm_up: Arc::clone(&warm_up),
            placement: placement.clone(),
        };
        let queue = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name(thread_name(&name))
            .spawn(move || run(start, roster, &queue, &ready_sender, &released))
            .map_err(|error| {
                Error::internal(format!(
                    "failed to start a thread for instance '{name}': {error}"
                ))
            });
        match thread {
            Ok(thread) => cores.threads.push(Core {
                thread,
                _release: release,
            }),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
        if is_parallel {
            starting.push(ready);
        } else {
            outcome = wait_ready(&ready, &mut checkups);
            if outcome.is_err() {
                break;
            }
        }
    }
    for ready in starting {
        outcome = outcome.and(wait_ready(&ready, &mut checkups));
    }
    // On the way out by an error the cores end as they are dropped.
    outcome?;
    cores.inspector = Inspector::start(version, checkups)?;
    if version.queue.set(queue).is_err() {
        return Err(Error::internal(format!(
            "the cores of model '{}' were started before",
            version.name
        )));
    }
    if let Some(inspector) = &cores.inspector {
        version
            .inspection
            .get_or_init(|| Arc::clone(inspector.board()));
    }
    Ok(cores)
}

impl Cores {
    /// Refuses new requests, executes what is queued, drops the instances on their threads and waits for all that. Blocks as long as
    /// the backend executes.
    pub fn stop(mut self) {
        self.end();
    }

    /// Refuses new requests without waiting; what is queued is still executed.
    pub fn close(&self) {
        self.queue.close();
    }

    /// How many threads there are.
    pub fn thread_count(&self) -> usize {
        self.threads.len()
    }

    fn end(&mut self) {
        self.close();
        self.join();
    }

    fn join(&mut self) {
        // It asks instances that go now.
        drop(self.inspector.take());
        // Released first, so that all end at the same time.
        let threads: Vec<JoinHandle<()>> = self.threads.drain(..).map(|core| core.thread).collect();
        for thread in threads {
            if thread.join().is_err() {
                crate::log::error!(
                    "a core of model '{}' panicked outside its backend",
                    self.version.name
                );
            }
        }
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.end();
    }
}

/// Which instances share a thread, in order of their first.
fn rosters(specs: Vec<InstanceSpec>, policy: ExecutionPolicy) -> Vec<Roster> {
    let mut rosters: Vec<Roster> = Vec::new();
    let mut by_device: BTreeMap<i32, usize> = BTreeMap::new();
    let mut active_count = 0;
    for spec in specs {
        let is_shared = policy == ExecutionPolicy::DeviceBlocking
            && spec.kind == InstanceKind::Gpu
            && !spec.is_passive;
        if is_shared
            && let Some(roster) = by_device
                .get(&spec.device_id)
                .and_then(|place| rosters.get_mut(*place))
        {
            roster.specs.push(spec);
            continue;
        }
        if is_shared {
            by_device.insert(spec.device_id, rosters.len());
        }
        let index = (!spec.is_passive).then_some(active_count);
        active_count += usize::from(index.is_some());
        rosters.push(Roster {
            specs: vec![spec],
            seats: Vec::new(),
            index,
        });
    }
    rosters
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
type Ready = Result<Vec<Arc<dyn Checkup>>, Error>;

fn wait_ready(
    ready: &mpsc::Receiver<Ready>,
    checkups: &mut Vec<Arc<dyn Checkup>>,
) -> Result<(), Error> {
    let hooks = ready.recv().unwrap_or_else(|_| {
        Err(Error::internal(
            "the thread of an instance ended before it was ready",
        ))
    })?;
    checkups.extend(hooks);
    Ok(())
}

/// What a core needs to make its instances.
struct Start {
    version: Arc<ModelVersion>,
    model: Arc<dyn backend::Model>,
    warm_up: Arc<WarmUp>,
    placement: Placement,
}

/// The life of a core thread.
fn run(
    start: Start,
    roster: Roster,
    queue: &Arc<Queue>,
    ready: &mpsc::Sender<Ready>,
    released: &mpsc::Receiver<()>,
) {
    let placement = &start.placement;
    placement.apply();
    let Roster {
        specs,
        mut seats,
        index,
    } = roster;
    // Instances that share a thread are of one device, and with it of one policy.
    let policy = specs.first().map_or("", |spec| &spec.host_policy);
    if let Err(error) = placement.host_policies.bind_current_thread(policy) {
        // Failure: the starter is gone, and with it the interest.
        let _ = ready.send(Err(error));
        return;
    }
    let mut instances: Vec<Box<dyn Instance>> = Vec::with_capacity(specs.len());
    for (place, spec) in specs.iter().enumerate() {
        if let Err(error) = start.create(spec, seats.get_mut(place), &mut instances) {
            drop_instances(instances);
            // Failure: the starter is gone, and with it the interest.
            let _ = ready.send(Err(error));
            return;
        }
    }
    // The runner attaches before the version takes requests.
    let runner = index.map(|index| {
        let spin = if start.placement.spins {
            Spin::up_to(SPIN_MAX_NS)
        } else {
            Spin::OFF
        };
        queue.runner(index, spin)
    });
    let checkups = instances.iter().filter_map(|instance| instance.checkup());
    let _ = ready.send(Ok(checkups.collect()));
    let attendant = roster
        .index
        .and_then(|core| Attendant::new(&start.version, core, instances.len()));
    // The samples' bytes are needed no more.
    drop(start);
    match runner {
        Some(runner) => serve(queue, runner, &mut instances, &mut seats, attendant),
        // Passive: kept, never asked. Ends when the sender is dropped.
        None => while released.recv().is_ok() {},
    }
    drop_instances(instances);
}

impl Start {
    /// Makes an instance and warms it up.
    fn create(
        &self,
        spec: &InstanceSpec,
        mut seat: Option<&mut Seat>,
        instances: &mut Vec<Box<dyn Instance>>,
    ) -> Result<(), Error> {
        let created = catch_unwind(AssertUnwindSafe(|| {
            Arc::clone(&self.model).create_instance(spec.clone())
        }));
        let mut instance = created.unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        let warmed_up = if spec.is_passive {
            Ok(())
        } else {
            let mut departures = Departures::default();
            self.warm_up.run(&self.version, &spec.name, |batch| {
                if let Some(seat) = &mut seat {
                    seat.acquire();
                }
                execute(&mut *instance, batch, &mut departures);
                if let Some(seat) = &mut seat {
                    seat.release(true);
                }
            })
        };
        // Kept also if that failed, to be dropped with the others.
        instances.push(instance);
        warmed_up
    }
}

/// Executes batches until the queue is closed and drained. Several instances take turns, unless the batch says which it is for.
fn serve(
    queue: &Arc<Queue>,
    mut runner: conch_channel::Runner,
    instances: &mut [Box<dyn Instance>],
    seats: &mut [Seat],
    mut attendant: Option<Attendant>,
) {
    let mut harvest: Harvest<Live> = Harvest::default();
    let mut departures = Departures::default();
    let mut next = 0;
    loop {
        // A batch of sequences is one instance's alone: it is formed first, then waits for the instance's turn.
        let seat = match attendant {
            None => seats.get_mut(next),
            Some(_) => None,
        };
        if !queue.next(&mut runner, seat, &mut harvest, &mut departures) {
            break;
        }
        if let Some(attendant) = &mut attendant {
            attendant.prepare(&mut harvest);
            next = harvest.instance;
            if let Some(seat) = seats.get_mut(next) {
                seat.acquire();
            }
        }
        if let Some(instance) = instances.get_mut(next) {
            execute(&mut **instance, &mut harvest.batch, &mut departures);
        }
        if (seats.len() > 1 || attendant.is_some())
            && let Some(seat) = seats.get_mut(next)
        {
            // The next turn is another instance's.
            seat.release(true);
        }
        next = (next + 1) % instances.len().max(1);
    }
}

/// One execution. A panic in the backend's adapter fails what is left of the batch, not the core.
fn execute(instance: &mut dyn Instance, batch: &mut Batch, departures: &mut Departures) {
    let executed = catch_unwind(AssertUnwindSafe(|| instance.execute(batch, departures)));
    if !batch.is_empty() {
        let error = match executed {
            Ok(()) => Error::internal("the instance left the request unanswered"),
            Err(panic) => panicked(&*panic),
        };
        crate::log::error!("an execution failed: {}", error.message);
        for live in batch.drain(..) {
            refuse(live, Failure::Other, error.clone(), departures);
        }
    } else if let Err(panic) = executed {
        crate::log::error!("an execution failed: {}", panicked(&*panic).message);
    }
    departures.flush();
}

/// Drops one by one, so that a panic in one does not keep the others.
fn drop_instances(instances: Vec<Box<dyn Instance>>) {
    for instance in instances {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(instance))) {
            crate::log::error!("an instance failed to end: {}", panicked(&*panic).message);
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
#[path = "core_tests.rs"]
mod tests;
