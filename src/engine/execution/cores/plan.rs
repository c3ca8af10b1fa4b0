//! Which instances share a thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_config::{InstanceKind, ResolvedConfig, Scheduling, SequenceBatching, SequenceStrategy};

use crate::backend::{ExecutionPolicy, InstanceSpec};
use crate::execution::progress::LoadProgress;
use crate::execution::rate_limiter::{RateLimiter, ResourceHandle};
use crate::execution::streams::device_cores::DeviceCores;
use crate::execution::warm_up::WarmUp;
use crate::{Error, ModelVersion};

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
    /// Which threads drive instances that keep batches in flight on GPUs.
    pub device_cores: Arc<DeviceCores>,
    /// Where to say how many are there.
    pub progress: Arc<LoadProgress>,
}

/// What one thread is to run.
pub(crate) struct WorkerSpec {
    pub(crate) specs: Vec<InstanceSpec>,
    /// As many as there are instances, if executions are limited and these are not passive.
    pub(crate) resource_handles: Vec<ResourceHandle>,
    /// Number among the cores that execute; none if all its instances are passive.
    pub(crate) index: Option<usize>,
}

/// How many of them execute.
pub(crate) fn active_count(worker_specs: &[WorkerSpec]) -> usize {
    let executes = |worker_spec: &&WorkerSpec| worker_spec.index.is_some();
    worker_specs.iter().filter(executes).count()
}

/// How many instances each of the threads has that execute instances of these `specs`, in order of
/// their first.
pub fn instance_counts(specs: &[InstanceSpec], policy: ExecutionPolicy) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut by_device: BTreeMap<i32, usize> = BTreeMap::new();
    for spec in specs.iter().filter(|spec| !spec.is_passive) {
        let new_place = counts.len();
        let place = match shares_core(spec, policy) {
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
pub(crate) fn worker_specs(
    version: &ModelVersion,
    instance_plan: &InstancePlan,
    first_index: usize,
) -> Result<Vec<WorkerSpec>, Error> {
    let mut worker_specs: Vec<WorkerSpec> = Vec::new();
    let mut by_device: BTreeMap<i32, usize> = BTreeMap::new();
    let mut next_index = first_index;
    for spec in &instance_plan.specs {
        let is_shared = shares_core(spec, instance_plan.policy);
        let known = by_device.get(&spec.device_id).filter(|_| is_shared);
        let place = match known {
            Some(place) => *place,
            None => {
                let index = (!spec.is_passive).then_some(next_index);
                next_index += usize::from(index.is_some());
                worker_specs.push(WorkerSpec {
                    specs: Vec::new(),
                    resource_handles: Vec::new(),
                    index,
                });
                worker_specs.len() - 1
            }
        };
        if is_shared {
            by_device.insert(spec.device_id, place);
        }
        let Some(worker_spec) = worker_specs.get_mut(place) else {
            continue;
        };
        if let Some(limiter) = instance_plan.limiter.as_ref().filter(|_| !spec.is_passive) {
            worker_spec
                .resource_handles
                .push(limiter.handle_for(version, spec)?);
        }
        worker_spec.specs.push(spec.clone());
    }
    Ok(worker_specs)
}

/// Whether the instances of its device share one core of the model's queue. Those that keep batches
/// in flight share a thread with all of their device, as long as none occupies it: each is a core.
pub(crate) fn shares_core(spec: &InstanceSpec, policy: ExecutionPolicy) -> bool {
    policy == ExecutionPolicy::DeviceBlocking && spec.kind == InstanceKind::Gpu && !spec.is_passive
}

/// Whether batches of a model may overlap in an instance: neither its scheduler nor a limiter of
/// executions waits for their end.
pub(crate) fn overlaps(config: &ResolvedConfig, is_limited: bool) -> bool {
    let is_waited_for = match &config.scheduling {
        Scheduling::Sequence(settings) => !sequences_overlap(settings),
        _ => false,
    };
    !is_limited && !is_waited_for
}

/// Whether batches of different sequences may overlap in an instance. The oldest strategy gives out
/// a sequence's next request once the one before has come back, whoever else executes. The direct
/// one takes the next look of a core for the end of the batch before.
pub(crate) fn sequences_overlap(settings: &SequenceBatching) -> bool {
    matches!(settings.strategy, SequenceStrategy::Oldest(_))
}
