//! One version of the simulated model: its scheduler, the cores that share it, and the plain model
//! beside it.
//!
//! What cores do between two looks is that of `sync::worker_pool`: whoever looks takes the whole
//! inbox, forms one batch, and unparks one idle core if anything is left; one deadline at a time is
//! watched, by an idle core or else by the timer thread.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use conch_scheduler::rate_limit::InstanceId;
use conch_scheduler::{DynamicBatcher, Fifo, Scheduler, SequenceBatcher};
use conch_sync::{NEVER_NS, PollState};

use crate::response_order::ResponseOrder;
use crate::simulation::plain::{ReferenceBatch, ReferenceBatcher};
use crate::simulation::reference::ReferenceSequences;
use crate::simulation::request::{SimulatedHandle, SimulatedOwned};
use crate::simulation::setup::{SchedulerKind, VersionSetup};
use crate::simulation::streams::SimulatedStream;

pub(super) struct SimulatedVersion {
    pub(super) setup: VersionSetup,
    pub(super) scheduler: Scheduler<SimulatedHandle>,
    pub(super) model: ReferenceModel,
    pub(super) inbox: Vec<SimulatedHandle>,
    pub(super) cores: Vec<SimulatedCore>,
    /// The resource handles of each core's instances; none where executions are not limited, nor
    /// once they are given back.
    pub(super) instances: Vec<Vec<InstanceId>>,
    /// What the scheduler left behind when it was last driven.
    pub(super) poll_state: PollState,
    pub(super) order: Option<Arc<ResponseOrder>>,
    /// Numbers in the order in which they were batched, and how many of them have left whole.
    pub(super) batched: Vec<usize>,
    pub(super) left_count: usize,
    /// The deadline that somebody watches.
    pub(super) watched_ns: u64,
    /// Requests that were admitted and are not answered.
    pub(super) live_count: usize,
    /// Requests that wait, by level.
    pub(super) pending: BTreeMap<u64, u32>,
    /// By id of a sequence: whether its client believes that it has begun.
    pub(super) begun: HashMap<u64, bool>,
    /// A request was cancelled since the last look. No core is unparked for that: a batch that it
    /// makes possible, as those behind it now fit a preferred size, waits for the next look, at the
    /// end of its delay at the latest.
    pub(super) is_disturbed: bool,
    pub(super) is_retired: bool,
}

#[derive(Default)]
pub(super) struct SimulatedCore {
    /// What it executes, or will.
    pub(super) batch: Vec<SimulatedOwned>,
    /// Its instance waits for its turn.
    pub(super) is_waiting: bool,
    /// The instance whose turn is next.
    pub(super) instance: usize,
    /// When that began to execute.
    pub(super) began_ns: u64,
    /// Requests of sequences that it executed, for the scheduler.
    pub(super) returned: Vec<SimulatedHandle>,
    /// A look is on the agenda.
    pub(super) is_rung: bool,
    /// Instances that keep batches in flight; none of a core that blocks.
    pub(super) streams: Vec<SimulatedStream>,
}

impl SimulatedCore {
    /// Whether it looks for a batch when it is woken.
    pub(super) fn is_idle(&self) -> bool {
        match &*self.streams {
            [] => self.batch.is_empty() && !self.is_waiting,
            streams => streams.iter().any(SimulatedStream::has_room),
        }
    }

    /// Whether it executes nothing.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_empty = |stream: &SimulatedStream| stream.in_flight.is_empty();
        self.batch.is_empty() && !self.is_waiting && self.streams.iter().all(is_empty)
    }
}

/// What the scheduler is compared with.
#[derive(Clone, Debug)]
pub(super) enum ReferenceModel {
    /// The default scheduler: first come, first served, one by one.
    Line(Vec<usize>),
    Dynamic(ReferenceBatcher),
    Sequences(Box<ReferenceSequences>),
}

impl SimulatedVersion {
    pub(super) fn new(setup: VersionSetup, instances: Vec<Vec<InstanceId>>) -> SimulatedVersion {
        let (scheduler, model) = match &setup.kind {
            SchedulerKind::Default => (
                Scheduler::Fifo(Fifo::default()),
                ReferenceModel::Line(Vec::new()),
            ),
            SchedulerKind::Dynamic(settings) => (
                Scheduler::Dynamic(DynamicBatcher::new(settings, setup.batch_size_max, None)),
                ReferenceModel::Dynamic(ReferenceBatcher::new(settings, setup.batch_size_max)),
            ),
            SchedulerKind::Sequence(settings) => {
                let sequence =
                    SequenceBatcher::new(settings, setup.batch_size_max, &setup.instance_counts);
                let reference = ReferenceSequences::new(settings, setup.batch_size_max);
                (
                    Scheduler::Sequence(Box::new(sequence)),
                    ReferenceModel::Sequences(Box::new(reference)),
                )
            }
        };
        let is_free = instances.iter().all(Vec::is_empty);
        let overlaps = setup.overlaps() && is_free;
        let core = |count: &usize| SimulatedCore {
            streams: match overlaps {
                true => (0..*count)
                    .map(|_| SimulatedStream::new(setup.depth_max))
                    .collect(),
                false => Vec::new(),
            },
            ..SimulatedCore::default()
        };
        SimulatedVersion {
            cores: setup.instance_counts.iter().map(core).collect(),
            instances,
            poll_state: PollState {
                is_ready: false,
                deadline_ns: NEVER_NS,
                is_empty: true,
            },
            order: setup.is_ordered().then(Arc::default),
            setup,
            scheduler,
            model,
            inbox: Vec::new(),
            batched: Vec::new(),
            left_count: 0,
            watched_ns: NEVER_NS,
            live_count: 0,
            pending: BTreeMap::new(),
            begun: HashMap::new(),
            is_disturbed: false,
            is_retired: false,
        }
    }

    /// An idle core that no one has unparked, from the first.
    pub(super) fn idle_core(&self) -> Option<usize> {
        self.cores
            .iter()
            .position(|core| core.is_idle() && !core.is_rung)
    }

    /// The instance of `core` whose turn is next.
    pub(super) fn instance(&self, core: usize) -> Option<InstanceId> {
        let instances = self.instances.get(core)?;
        instances.get(self.cores[core].instance).copied()
    }

    /// Whether a core that looked now would find something to do.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        !self.inbox.is_empty() || self.poll_state.is_ready || self.poll_state.deadline_ns <= now_ns
    }

    /// It takes no more requests, has answered all, and no core is about to do anything.
    pub(super) fn is_over(&self) -> bool {
        let has_ended = |core: &SimulatedCore| core.is_at_rest() && !core.is_rung;
        self.is_retired && self.live_count == 0 && self.cores.iter().all(has_ended)
    }

    /// Whether a request lies in a queue.
    pub(super) fn has(&self, handle: &SimulatedHandle) -> bool {
        let returned = self.cores.iter().flat_map(|core| &core.returned);
        let mut linked = self.inbox.iter().chain(returned);
        linked.any(|other| Arc::ptr_eq(other, handle))
    }

    /// Nobody is about to look.
    pub(super) fn is_quiet(&self) -> bool {
        self.inbox.is_empty() && self.cores.iter().all(|core| !core.is_rung)
    }

    pub(super) fn has_idle_core(&self) -> bool {
        self.cores.iter().any(SimulatedCore::is_idle)
    }

    /// The bound of those that wait at `level`; 0 for none.
    pub(super) fn pending_max(&self, level: u64) -> u32 {
        if let Some(settings) = self.setup.sequences() {
            return settings.queue_size_max;
        }
        self.setup.dynamic().map_or(0, |settings| {
            conch_scheduler::policy_of(&settings.priority_policies, settings.default_policy, level)
                .queue_size_max
        })
    }
}

impl ReferenceModel {
    pub(super) fn accept(&mut self, handle: &SimulatedHandle, now_ns: u64) {
        if let ReferenceModel::Sequences(reference) = self {
            reference.accept(handle, now_ns);
            return;
        }
        // Who was cancelled before the scheduler saw it never waits there.
        if !handle.is_queued() {
            return;
        }
        let request = handle.shared();
        match self {
            ReferenceModel::Line(line) => line.push(request.number),
            ReferenceModel::Dynamic(plain) => plain.accept(request.number, request.facts.clone()),
            ReferenceModel::Sequences(_) => {}
        }
    }

    pub(super) fn remove(&mut self, number: usize) {
        match self {
            ReferenceModel::Line(line) => line.retain(|other| *other != number),
            ReferenceModel::Dynamic(plain) => plain.remove(number),
            ReferenceModel::Sequences(_) => {}
        }
    }

    pub(super) fn form(&mut self, now_ns: u64) -> ReferenceBatch {
        match self {
            ReferenceModel::Line(line) => ReferenceBatch {
                batch: line.drain(..line.len().min(1)).collect(),
                expired: Vec::new(),
            },
            ReferenceModel::Dynamic(plain) => plain.form(now_ns),
            ReferenceModel::Sequences(_) => ReferenceBatch::default(),
        }
    }

    /// The batch that [`ReferenceModel::form`] would form, which stays.
    pub(super) fn look(&mut self, now_ns: u64) -> ReferenceBatch {
        match self {
            ReferenceModel::Dynamic(plain) => plain.look(now_ns),
            _ => self.clone().form(now_ns),
        }
    }

    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<usize> {
        match self {
            ReferenceModel::Line(_) | ReferenceModel::Sequences(_) => Vec::new(),
            ReferenceModel::Dynamic(plain) => plain.expire(now_ns),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            ReferenceModel::Line(line) => line.is_empty(),
            ReferenceModel::Dynamic(plain) => plain.is_empty(),
            ReferenceModel::Sequences(reference) => reference.is_empty(),
        }
    }
}
