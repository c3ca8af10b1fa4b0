//! How batches form: passive state machines.
//!
//! Entries and the time go in, batches and the next deadline come out. Nothing here reads a clock,
//! starts a thread or does I/O; `queue` drives a [`Scheduler`] under its model's lock, tests drive
//! it on a virtual clock with entries of their own.

mod dynamic;
#[cfg(test)]
mod fake;
mod fifo;
mod hold;
mod levels;
pub(crate) mod measure;
mod sequence;
mod strategy;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use conch_config::{ResolvedConfig, Scheduling};
use conch_sync::{Claim, ClaimReason, NEVER_NS, Owned, PollState};
use smallvec::SmallVec;

pub(crate) use dynamic::DynamicBatcher;
pub(crate) use fifo::Fifo;
pub(crate) use hold::SchedulerDelay;
pub(crate) use levels::{policy_of, rejection_ns};
pub(crate) use sequence::{SequenceBatcher, SequenceContext, SequenceKey};
pub(crate) use strategy::{BatchDecision, BatchPolicy};

/// What batches require to be equal: the shapes of the variable, non-ragged inputs, the contents of
/// shape tensors, and which inputs are there if any is optional. Empty for a model whose requests
/// always fit together.
pub(crate) type Signature = SmallVec<[i64; 4]>;

/// What a scheduler knows of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchedulingParams {
    /// Inferences in it, at least 1.
    pub batch_count: u32,
    /// Its priority level; 0 on a model without levels.
    pub level: u64,
    /// When it entered the queue.
    pub queued_ns: u64,
    /// The client's own timeout; 0 for none.
    pub timeout_us: u64,
    /// When the client stops waiting, where it said so: a wish that orders requests, and that
    /// others see to. [`NEVER_NS`] for none.
    pub deadline_ns: u64,
    pub signature: Signature,
}

impl Default for SchedulingParams {
    fn default() -> SchedulingParams {
        SchedulingParams {
            batch_count: 0,
            level: 0,
            queued_ns: 0,
            timeout_us: 0,
            deadline_ns: NEVER_NS,
            signature: Signature::new(),
        }
    }
}

/// A queued request, which somebody else may claim at any time.
pub(crate) trait Entry: Clone {
    type Owned;

    fn facts(&self) -> &SchedulingParams;

    /// Whether nobody has claimed it yet.
    fn is_waiting(&self) -> bool;

    /// Takes possession; none if somebody was faster.
    fn claim(&self, reason: ClaimReason) -> Option<Self::Owned>;

    /// Its part in its sequence, on a model whose requests have one: then nobody but the scheduler
    /// claims it.
    fn member(&self) -> Option<&SequenceContext>;

    /// Whether somebody asked to cancel it, as far as the scheduler is not told later.
    fn is_cancelled(&self) -> bool;

    /// Whether both are the same request.
    fn is_same(&self, other: &Self) -> bool;
}

/// What everyone may read of a request that is claimed.
pub(crate) trait EntryKind {
    fn facts(&self) -> &SchedulingParams;

    /// As [`Entry::member`].
    fn member(&self) -> Option<&SequenceContext>;
}

impl<S: EntryKind, T> Entry for Arc<Claim<S, T>> {
    type Owned = Owned<S, T>;

    fn facts(&self) -> &SchedulingParams {
        self.shared().facts()
    }

    fn is_waiting(&self) -> bool {
        self.is_queued()
    }

    fn claim(&self, reason: ClaimReason) -> Option<Owned<S, T>> {
        Claim::claim(self, reason, None)
    }

    fn member(&self) -> Option<&SequenceContext> {
        self.shared().member()
    }

    fn is_cancelled(&self) -> bool {
        self.was_cancelled()
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self, other)
    }
}

/// Why a request of a sequence is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dismissal {
    /// Its sequence is not known, and it does not start one.
    NotStarted,
    /// As many sequences wait for a slot as may.
    BacklogFull,
    /// Its sequence waited for a slot for too long.
    TimedOut,
    /// It, or an earlier one of its sequence, is cancelled.
    Cancelled,
}

/// What one drive of a scheduler produced.
#[derive(Debug)]
pub(crate) struct SchedulerOutput<O> {
    /// Requests to execute together; empty if it is not time yet.
    pub batch: Vec<O>,
    /// Requests whose timeout has passed under a rejecting policy.
    pub expired: Vec<O>,
    /// Requests that were cancelled while a strategy looked at them.
    pub cancelled: Vec<O>,
    /// Requests of sequences that are to be answered with an error.
    pub refused: Vec<(O, Dismissal)>,
    /// The slots, in their instance, of a batch of sequences; as long as the batch.
    pub rows: Vec<usize>,
    /// Rows of a direct batch: up to the highest slot that had a request ready, even one that does
    /// not fit the others.
    pub row_count: usize,
    /// Which of its core's instances has these slots.
    pub instance: usize,
    /// Cores that are to ask for a batch.
    pub called: Vec<usize>,
    /// Sequences that take no more requests, once they are being handed over.
    pub ended: Vec<SequenceKey>,
    /// Sequences that were started while they were under way.
    pub conflicts: Vec<SequenceKey>,
}

impl<O> SchedulerOutput<O> {
    fn refuse<T: Entry<Owned = O>>(&mut self, entry: &T, reason: ClaimReason, why: Dismissal) {
        self.refused
            .extend(entry.claim(reason).map(|owned| (owned, why)));
    }
}

impl<O> Default for SchedulerOutput<O> {
    fn default() -> SchedulerOutput<O> {
        SchedulerOutput {
            batch: Vec::new(),
            expired: Vec::new(),
            cancelled: Vec::new(),
            refused: Vec::new(),
            rows: Vec::new(),
            row_count: 0,
            instance: 0,
            called: Vec::new(),
            ended: Vec::new(),
            conflicts: Vec::new(),
        }
    }
}

/// The scheduler of one model.
#[derive(Debug)]
pub(crate) enum Scheduler<T: Entry> {
    Fifo(Fifo<T>),
    Dynamic(DynamicBatcher<T>),
    Sequence(Box<SequenceBatcher<T>>),
}

impl<T: Entry> Scheduler<T> {
    /// The scheduler that `config` asks for; none for an ensemble, which has none. Only the dynamic
    /// batcher asks `strategy`, and only that of sequences minds how many instances each core has.
    pub(crate) fn new(
        config: &ResolvedConfig,
        instance_counts: &[usize],
        strategy: Option<Box<dyn BatchPolicy<T> + Send>>,
    ) -> Option<Scheduler<T>> {
        match &config.scheduling {
            Scheduling::Default => Some(Scheduler::Fifo(Fifo::default())),
            Scheduling::Dynamic(settings) => Some(Scheduler::Dynamic(DynamicBatcher::new(
                settings,
                config.max_batch_size,
                strategy,
            ))),
            Scheduling::Sequence(settings) => Some(Scheduler::Sequence(Box::new(
                SequenceBatcher::new(settings, config.max_batch_size, instance_counts),
            ))),
            Scheduling::Ensemble => None,
        }
    }

    /// Forms no batch until what `hold` says.
    pub(crate) fn hold(&mut self, hold: SchedulerDelay) {
        match self {
            // As upstream's, whose batcher has no thread without dynamic batching.
            Scheduler::Fifo(_) => {}
            Scheduler::Dynamic(dynamic) => dynamic.hold(hold.request_count),
            Scheduler::Sequence(sequence) => sequence.hold(hold),
        }
    }

    /// Adds an arrival. What it may lead to is added to the output.
    pub(crate) fn accept(&mut self, entry: T, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        match self {
            Scheduler::Fifo(fifo) => fifo.accept(entry),
            Scheduler::Dynamic(dynamic) => dynamic.accept(entry),
            Scheduler::Sequence(sequence) => sequence.accept(entry, now_ns, output),
        }
    }

    /// Forms one batch for `core`, if it is time for one at `now_ns`. The output's vectors are
    /// appended to.
    pub(crate) fn form(
        &mut self,
        core: usize,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) -> PollState {
        match self {
            Scheduler::Fifo(fifo) => fifo.form(output),
            Scheduler::Dynamic(dynamic) => dynamic.form(now_ns, output),
            Scheduler::Sequence(sequence) => sequence.form(core, now_ns, output),
        }
    }

    /// Whether a batch could be formed at `now_ns`, by who may not form it yet. Rejects what has
    /// timed out.
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) -> PollState {
        match self {
            Scheduler::Fifo(fifo) => fifo.poll_state(),
            Scheduler::Dynamic(dynamic) => dynamic.look(now_ns, output),
            // Its batches are each for one core, which forms them before it waits for anything.
            Scheduler::Sequence(sequence) => sequence.expire(now_ns, output),
        }
    }

    /// Rejects what has timed out, without forming a batch: for the time while every instance
    /// executes.
    pub(crate) fn expire(
        &mut self,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) -> PollState {
        match self {
            Scheduler::Fifo(fifo) => fifo.poll_state(),
            Scheduler::Dynamic(dynamic) => dynamic.expire(now_ns, output),
            Scheduler::Sequence(sequence) => sequence.expire(now_ns, output),
        }
    }
}

/// The poll_state of a scheduler that waits for nothing.
fn idle(is_empty: bool) -> PollState {
    PollState {
        is_ready: !is_empty,
        deadline_ns: NEVER_NS,
        is_empty,
    }
}
