//! Other instances for a version that serves: those that are wanted come, those that are not leave,
//! the others notice nothing.
//!
//! In two steps, so that several versions change together or not at all: [`Cores::revise`] makes
//! the new instances, and [`InstanceChange::commit`] lets them serve and the others go. The queue
//! stays, and with it what is in it.

use std::sync::{Arc, PoisonError, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use conch_config::Scheduling;

use crate::backend;
use crate::execution::cores::{
    Core, Cores, InstancePlan, active_count, make_cores, shares_core, worker_specs,
};
use crate::execution::queue::ModelQueue;
use crate::threads::placement::Placement;
use crate::{Error, InstanceSpec, ModelVersion};

/// A change that has been prepared. Dropping it undoes that.
pub struct InstanceChange {
    cores: Arc<Cores>,
    version: Arc<ModelVersion>,
    added: Vec<Core>,
    leaving: Vec<ThreadId>,
}

impl Cores {
    /// Makes the instances that `instance_plan` wants and this has not. One that differs from a
    /// wanted one in its name alone is that one, as upstream. None if it cannot be done without a
    /// reload: an instance shares its thread, too many have come and gone since the load, or none
    /// would be left to execute. Blocks as long as the backend does.
    ///
    /// # Errors
    /// As for a load; then nothing has changed.
    pub fn revise(
        self: &Arc<Self>,
        version: &Arc<ModelVersion>,
        model: &Arc<dyn backend::Model>,
        mut instance_plan: InstancePlan,
        placement: &Placement,
    ) -> Result<Option<InstanceChange>, Error> {
        let policy = instance_plan.policy;
        let is_apart = |specs: &[InstanceSpec]| specs.iter().all(|spec| !shares_core(spec, policy));
        let executes = |spec: &InstanceSpec| !spec.is_passive;
        let (mut leaving, first_index) = {
            let workers = self.workers();
            if !is_apart(&instance_plan.specs)
                || !workers.cores.iter().all(|core| is_apart(&core.specs))
                || !instance_plan.specs.iter().any(executes)
            {
                return Ok(None);
            }
            let present = workers.cores.iter().filter_map(|core| {
                Some((core.thread.thread().id(), signature(core.specs.first()?)))
            });
            (present.collect::<Vec<_>>(), workers.next_index)
        };
        instance_plan.specs.retain(|wanted| {
            let wanted = signature(wanted);
            let found = leaving.iter().position(|(_, present)| *present == wanted);
            if let Some(place) = found {
                leaving.remove(place);
            }
            found.is_none()
        });
        let worker_specs = worker_specs(version, &instance_plan, first_index)?;
        let next_index = first_index + active_count(&worker_specs);
        if next_index > self.queue.core_count_max() {
            return Ok(None);
        }
        self.workers().next_index = next_index;
        let added = make_cores(
            version,
            model,
            &self.queue,
            worker_specs,
            instance_plan,
            placement,
        )?;
        Ok(Some(InstanceChange {
            cores: Arc::clone(self),
            version: Arc::clone(version),
            added,
            leaving: leaving.into_iter().map(|(thread, _)| thread).collect(),
        }))
    }
}

/// What two instances must have in common to be exchangeable: all but their names.
fn signature(spec: &InstanceSpec) -> InstanceSpec {
    InstanceSpec {
        name: String::new(),
        ..spec.clone()
    }
}

impl InstanceChange {
    /// Puts the change into effect. Does not wait for the instances that leave: they finish what
    /// they execute. The receiver is disconnected when they are finalised; none if there is nothing
    /// to wait for, as sequences may live for an hour.
    pub fn commit(mut self) -> Option<mpsc::Receiver<()>> {
        let added = std::mem::take(&mut self.added);
        let mut workers = self.cores.workers();
        let (leaving, staying) = std::mem::take(&mut workers.cores)
            .into_iter()
            .partition::<Vec<Core>, _>(|core| self.leaving.contains(&core.thread.thread().id()));
        workers.cores = staying;
        added.iter().for_each(Core::serve);
        workers.cores.extend(added);
        if let Err(error) = workers.inspect(&self.version) {
            conch_log::error!("{error}");
        }
        if leaving.is_empty() {
            return None;
        }
        let (present, gone) = mpsc::channel();
        let has_sequences = matches!(self.version.config.scheduling, Scheduling::Sequence(_));
        let probes = workers
            .prober
            .as_ref()
            .map(|prober| Arc::clone(prober.queue()));
        let patience = Duration::from_secs(self.version.config.own.sequence_drain_seconds);
        let (queue, version) = (Arc::clone(&self.cores.queue), Arc::clone(&self.version));
        workers
            .drain_threads
            .retain(|drain_thread| !drain_thread.is_finished());
        // Shared with the thread so that it can still be had if that does not start.
        let unstarted = Arc::new(std::sync::Mutex::new(leaving));
        let drain = {
            let unstarted = Arc::clone(&unstarted);
            move || {
                if let Some(probes) = probes {
                    // A round that began with the old ones asks them.
                    probes.await_round();
                }
                let leaving =
                    std::mem::take(&mut *unstarted.lock().unwrap_or_else(PoisonError::into_inner));
                drain_leaving(&queue, leaving, &version, patience);
                drop(present);
            }
        };
        let drain_thread = std::thread::Builder::new().name("unload".to_owned());
        match drain_thread.spawn(drain) {
            Ok(drain_thread) => {
                workers.drain_threads.push(drain_thread);
                (!has_sequences).then_some(gone)
            }
            Err(cause) => {
                conch_log::warning!(
                    "instances of model '{}' leave without a thread for that: {cause}",
                    self.version.name
                );
                drop(workers);
                let leaving =
                    std::mem::take(&mut *unstarted.lock().unwrap_or_else(PoisonError::into_inner));
                // This thread has others to see to.
                drain_leaving(&self.cores.queue, leaving, &self.version, Duration::ZERO);
                None
            }
        }
    }
}

/// Lets cores go, those with sequences when these have ended or `patience` is over, and waits until
/// they have.
fn drain_leaving(
    queue: &Arc<ModelQueue>,
    leaving: Vec<Core>,
    version: &ModelVersion,
    patience: Duration,
) {
    let indices = leaving.iter().filter_map(|core| core.index);
    match version.config.scheduling {
        Scheduling::Sequence(_) => queue.drain(indices.collect(), patience),
        _ => indices.for_each(|index| queue.dismiss(index)),
    }
    for core in leaving {
        core.join(&version.name);
    }
}

impl Drop for InstanceChange {
    /// The new instances, if they were not let in, end again.
    fn drop(&mut self) {
        for core in self.added.drain(..) {
            core.join(&self.version.name);
        }
    }
}
