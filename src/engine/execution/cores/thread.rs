//! The thread of a core: it makes its instances, executes batches until it is let go, and drops the
//! instances.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

use conch_config::InstanceKind;
use conch_scheduler::SchedulerOutput;
use conch_sync::{SPIN_MAX_NS, Spin};

use crate::backend::{self, Instance, InstanceSpec};
use crate::execution::cores::deferred_wakes::DeferredWakes;
use crate::execution::cores::orders::{CoreOrder, OrderReceiver};
use crate::execution::cores::plan::{WorkerSpec, overlaps};
use crate::execution::queue::{ModelQueue, Turn};
use crate::execution::rate_limiter::ResourceHandle;
use crate::execution::seat::{Seat, execute, execute_unflushed, panicked};
use crate::execution::streams::device_cores::{DeviceCores, DeviceKey};
use crate::execution::streams::stream_core::StreamCore;
use crate::execution::streams::stream_instance::StreamInstance;
use crate::execution::streams::synchronous::SynchronousInstance;
use crate::execution::warm_up::WarmUp;
use crate::gpus::GpuHost;
use crate::model::readiness::check::ReadinessCheck;
use crate::sequence::sequence_inputs::SequenceInputs;
use crate::threads::placement::Placement;
use crate::{Error, ModelVersion, OwnedRequest, PendingResponses};

/// What a core says when its instances are there: their readiness hooks.
pub(super) type WorkerReady = Result<Vec<Arc<dyn ReadinessCheck>>, Error>;

/// What a core needs to make its instances.
pub(super) struct WorkerStart {
    pub(super) version: Arc<ModelVersion>,
    pub(super) model: Arc<dyn backend::Model>,
    pub(super) warm_up: Arc<WarmUp>,
    pub(super) placement: Placement,
    pub(super) device_cores: Arc<DeviceCores>,
}

/// The life of a core thread. It has a `seat` unless its instances are passive.
pub(super) fn run(
    start: WorkerStart,
    worker_spec: WorkerSpec,
    seat: Option<Arc<Seat>>,
    queue: &Arc<ModelQueue>,
    ready: &mpsc::SyncSender<WorkerReady>,
    ordered: &OrderReceiver,
) {
    let WorkerSpec {
        specs,
        mut resource_handles,
        index,
    } = worker_spec;
    // Instances that share a thread are of one device, and with it of one policy.
    let (kind, device_id, policy) = specs.first().map_or((InstanceKind::Cpu, 0, ""), |spec| {
        (spec.kind, spec.device_id, &*spec.host_policy)
    });
    let placement = start.placement.of(kind, device_id, policy);
    placement.apply();
    let gives_way = placement.gives_way;
    if let Err(error) = start.placement.host_policies.bind_current_thread(policy) {
        // Failure: the starter is gone, and with it the interest.
        let _ = ready.send(Err(error));
        return;
    }
    let driver = StreamDriver::of(&start, specs.first());
    let mut instances: Vec<CoreInstance> = Vec::with_capacity(specs.len());
    for (place, spec) in specs.into_iter().enumerate() {
        let resources = resource_handles.get_mut(place);
        let wrap = |created, name: &str| CoreInstance::new(created, name, queue, placement.spins);
        if let Err(error) = start.create(spec, wrap, resources, &mut instances) {
            drop_instances(instances);
            // Failure: the starter is gone, and with it the interest.
            let _ = ready.send(Err(error));
            return;
        }
    }
    let spin_max_ns = if placement.spins { SPIN_MAX_NS } else { 0 };
    let checks = instances.iter().filter_map(CoreInstance::readiness_check);
    let _ = ready.send(Ok(checks.collect()));
    let sequence_inputs = index.and_then(|core| {
        let (version, slots) = (&start.version, &queue.growable_slots);
        SequenceInputs::new(version, core, instances.len(), device_id, slots)
    });
    // The samples' bytes are needed no more.
    drop(start);
    conch_memory::unused::give_to_threads();
    match (seat, ordered.wait()) {
        (Some(seat), CoreOrder::Serve) => {
            let worker = queue.worker(seat.core(), Spin::up_to(spin_max_ns));
            match core_instances(instances, queue, &resource_handles) {
                CoreInstances::Streams(streams) => {
                    let core = StreamCore::new(queue, worker, streams, sequence_inputs);
                    let streams = driver.drive(core, Spin::up_to(spin_max_ns));
                    instances = streams.into_iter().map(CoreInstance::stream).collect();
                }
                CoreInstances::Blocking(blocking) => {
                    seat.furnish(blocking);
                    let resources = &mut resource_handles;
                    serve_at_seat(queue, worker, &seat, resources, sequence_inputs, gives_way);
                    let mut pending = PendingResponses::default();
                    let blocking = std::mem::take(&mut seat.enter(&mut pending).instances);
                    instances = blocking.into_iter().map(CoreInstance::Blocking).collect();
                }
            }
        }
        // Passive: kept, never asked. Or others were made beside a failure.
        (_, CoreOrder::Serve | CoreOrder::Leave) => {}
    }
    drop_instances(instances);
}

/// Who drives instances that keep batches in flight.
enum StreamDriver {
    /// This thread: they have no GPU.
    Own,
    /// The core of their GPU.
    Device {
        device_cores: Arc<DeviceCores>,
        placement: Placement,
        key: DeviceKey,
    },
}

impl StreamDriver {
    /// For instances like `spec`.
    fn of(start: &WorkerStart, spec: Option<&InstanceSpec>) -> StreamDriver {
        let on_gpu = spec.filter(|spec| spec.kind == DeviceKey::KIND);
        on_gpu.map_or(StreamDriver::Own, |spec| StreamDriver::Device {
            device_cores: Arc::clone(&start.device_cores),
            placement: start.placement.clone(),
            key: DeviceKey {
                device_id: spec.device_id,
                host_policy: spec.host_policy.clone(),
            },
        })
    }

    /// Blocks until nothing is in flight, and nothing will be.
    fn drive(&self, core: StreamCore, spin: Spin) -> Vec<StreamInstance> {
        match self {
            StreamDriver::Own => core.serve(spin),
            StreamDriver::Device {
                device_cores,
                placement,
                key,
            } => device_cores.drive(key, placement, core),
        }
    }
}

/// An instance as it was made.
enum CoreInstance {
    Blocking(Box<dyn Instance>),
    /// It can keep batches in flight.
    Stream(Box<SynchronousInstance>),
}

impl CoreInstance {
    fn new(
        created: Box<dyn Instance>,
        name: &str,
        queue: &Arc<ModelQueue>,
        spins: bool,
    ) -> CoreInstance {
        match created.depth_max() {
            None => CoreInstance::Blocking(created),
            Some(_) => CoreInstance::stream(StreamInstance::new(created, name, queue, spins)),
        }
    }

    fn stream(stream: StreamInstance) -> CoreInstance {
        CoreInstance::Stream(Box::new(SynchronousInstance(stream)))
    }

    /// Executes one batch after the other.
    fn blocking(self) -> Box<dyn Instance> {
        match self {
            CoreInstance::Blocking(instance) => instance,
            CoreInstance::Stream(synchronous) => synchronous,
        }
    }

    fn as_blocking(&mut self) -> &mut dyn Instance {
        match self {
            CoreInstance::Blocking(instance) => &mut **instance,
            CoreInstance::Stream(synchronous) => &mut **synchronous,
        }
    }

    fn readiness_check(&self) -> Option<Arc<dyn ReadinessCheck>> {
        match self {
            CoreInstance::Blocking(instance) => instance.readiness_check(),
            CoreInstance::Stream(synchronous) => synchronous.readiness_check(),
        }
    }

    /// Why it takes no batches any more.
    fn fault(&self) -> Option<&Error> {
        match self {
            CoreInstance::Blocking(_) => None,
            CoreInstance::Stream(synchronous) => synchronous.0.fault(),
        }
    }
}

/// How the instances of a core are driven.
enum CoreInstances {
    /// One execution after the other.
    Blocking(Vec<Box<dyn Instance>>),
    /// Several batches in flight.
    Streams(Vec<StreamInstance>),
}

/// Batches overlap if every instance lets them, and neither a scheduler nor a limiter waits for
/// their end.
fn core_instances(
    mut instances: Vec<CoreInstance>,
    queue: &Arc<ModelQueue>,
    resource_handles: &[ResourceHandle],
) -> CoreInstances {
    for instance in &mut instances {
        if let CoreInstance::Stream(synchronous) = instance {
            synchronous.0.begin_service();
        }
    }
    let is_stream = |instance: &CoreInstance| matches!(instance, CoreInstance::Stream(_));
    let overlaps = overlaps(queue.config(), !resource_handles.is_empty());
    if overlaps && instances.iter().all(is_stream) {
        let streams = instances.into_iter().filter_map(|instance| match instance {
            CoreInstance::Stream(synchronous) => Some(synchronous.0),
            CoreInstance::Blocking(_) => None,
        });
        return CoreInstances::Streams(streams.collect());
    }
    let blocking = instances.into_iter().map(CoreInstance::blocking);
    CoreInstances::Blocking(blocking.collect())
}

impl WorkerStart {
    /// Makes an instance and warms it up.
    fn create(
        &self,
        spec: InstanceSpec,
        wrap: impl FnOnce(Box<dyn Instance>, &str) -> CoreInstance,
        mut resources: Option<&mut ResourceHandle>,
        instances: &mut Vec<CoreInstance>,
    ) -> Result<(), Error> {
        if spec.kind == InstanceKind::Gpu
            && let Some(gpus) = GpuHost::current()
        {
            gpus.check_load_limit(&spec.name, spec.device_id)?;
            // Its pools are there before the first request. A backend may do without.
            if let Err(error) = gpus.memory(i64::from(spec.device_id)) {
                conch_log::warning!("instance '{}': {error}", spec.name);
            }
            self.version.statistics.open_device(spec.device_id);
        }
        let (name, is_passive) = (spec.name.clone(), spec.is_passive);
        let created = catch_unwind(AssertUnwindSafe(|| {
            Arc::clone(&self.model).create_instance(spec)
        }));
        let created = created.unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        let mut instance = wrap(created, &name);
        let warmed_up = if is_passive {
            Ok(())
        } else {
            let mut pending = PendingResponses::default();
            self.warm_up.run(&self.version, &name, |batch| {
                if let Some(resources) = &mut resources {
                    resources.acquire();
                }
                execute(instance.as_blocking(), batch, &mut pending);
                if let Some(resources) = &mut resources {
                    resources.release_after_warm_up();
                }
                instance.fault().cloned().map_or(Ok(()), Err)
            })
        };
        // Kept also if that failed, to be dropped with the others.
        instances.push(instance);
        warmed_up
    }
}

/// [Serves](serve), and has other threads execute at the seat meanwhile where they may.
fn serve_at_seat(
    queue: &Arc<ModelQueue>,
    worker: conch_sync::Worker,
    seat: &Arc<Seat>,
    resource_handles: &mut [ResourceHandle],
    sequence_inputs: Option<SequenceInputs>,
    gives_way: bool,
) {
    let is_free = resource_handles.is_empty() && sequence_inputs.is_none();
    if is_free {
        queue.open_seat(seat);
    }
    queue.usage.open_seat(seat);
    let wakes = DeferredWakes::new(gives_way && is_free);
    serve(
        queue,
        worker,
        seat,
        resource_handles,
        sequence_inputs,
        wakes,
    );
    queue.usage.close_seat(seat);
    seat.close();
}

/// Executes batches until the queue is closed and drained, or lets this core go. Several instances
/// take turns, unless the batch says which it is for.
fn serve(
    queue: &Arc<ModelQueue>,
    mut worker: conch_sync::Worker,
    seat: &Seat,
    resource_handles: &mut [ResourceHandle],
    mut sequence_inputs: Option<SequenceInputs>,
    mut wakes: DeferredWakes,
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
        let at_once = match wakes.may_wait(&pending) {
            true => queue.next_now(&mut worker, seat, &mut output, &mut pending),
            false => None,
        };
        let turn = at_once.unwrap_or_else(|| {
            // Also those whose wake was deferred.
            pending.flush();
            queue.next(&mut worker, seat, resources, &mut output, &mut pending)
        });
        match turn {
            Turn::Batch => {}
            Turn::Call => {
                drop(seat.enter(&mut pending));
                continue;
            }
            Turn::Over => break,
        }
        if let Some(sequence_inputs) = &mut sequence_inputs {
            sequence_inputs.prepare(&mut output, &mut pending);
            if output.batch.is_empty() {
                pending.flush();
                continue;
            }
            next = output.instance;
            if let Some(resources) = resource_handles.get_mut(next) {
                resources.acquire();
            }
        }
        let mut state = seat.enter(&mut pending);
        seat.begin_busy(next);
        if let Some(instance) = state.instances.get_mut(next) {
            wakes.around(&mut pending, |pending| {
                execute_unflushed(&mut **instance, &mut output.batch, pending);
            });
        }
        let instance_count = state.instances.len();
        seat.end_busy();
        drop(state);
        if (resource_handles.len() > 1 || sequence_inputs.is_some())
            && let Some(resources) = resource_handles.get_mut(next)
        {
            // The next turn is another instance's.
            resources.release(true);
        }
        next = (next + 1) % instance_count.max(1);
    }
    pending.flush();
}

/// Drops one by one, so that a panic in one does not keep the others.
fn drop_instances(instances: Vec<CoreInstance>) {
    for instance in instances {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(instance))) {
            conch_log::error!("an instance failed to end: {}", panicked(&*panic).message);
        }
    }
}

/// At most 15 bytes, the system's limit; the end of an instance's name tells it from the others.
pub(super) fn thread_name(instance: &str) -> String {
    const NAME_BYTES_MAX: usize = 15;
    let mut start = instance.len().saturating_sub(NAME_BYTES_MAX);
    while !instance.is_char_boundary(start) {
        start += 1;
    }
    instance[start..].replace('\0', "")
}
