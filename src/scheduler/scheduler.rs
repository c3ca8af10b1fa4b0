//! The scheduler of one model: one of three, as its configuration says.

use conch_config::{ResolvedConfig, Scheduling};
use conch_sync::PollState;

use crate::delay::SchedulerDelay;
use crate::dynamic::{BatchPolicy, DynamicBatcher};
use crate::entry::Entry;
use crate::fifo::Fifo;
use crate::output::SchedulerOutput;
use crate::sequence_batcher::SequenceBatcher;

/// The scheduler of one model.
#[derive(Debug)]
pub enum Scheduler<T: Entry> {
    Fifo(Fifo<T>),
    Dynamic(DynamicBatcher<T>),
    Sequence(Box<SequenceBatcher<T>>),
}

impl<T: Entry> Scheduler<T> {
    /// The scheduler that `config` asks for; none for an ensemble, which has none. Only the dynamic
    /// batcher asks `strategy`, and only that of sequences minds how many instances each core has.
    pub fn new(
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
    pub fn hold(&mut self, hold: SchedulerDelay) {
        match self {
            // As upstream's, whose batcher has no thread without dynamic batching.
            Scheduler::Fifo(_) => {}
            Scheduler::Dynamic(dynamic) => dynamic.hold(hold.request_count),
            Scheduler::Sequence(sequence) => sequence.hold(hold),
        }
    }

    /// Adds an arrival. What it may lead to is added to the output.
    pub fn accept(&mut self, entry: T, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        match self {
            Scheduler::Fifo(fifo) => fifo.accept(entry),
            Scheduler::Dynamic(dynamic) => dynamic.accept(entry),
            Scheduler::Sequence(sequence) => sequence.accept(entry, now_ns, output),
        }
    }

    /// Forms one batch for `core`, if it is time for one at `now_ns`. The output's vectors are
    /// appended to.
    pub fn form(
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
    pub fn peek(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        match self {
            Scheduler::Fifo(fifo) => fifo.poll_state(),
            Scheduler::Dynamic(dynamic) => dynamic.peek(now_ns, output),
            // Its batches are each for one core, which forms them before it waits for anything.
            Scheduler::Sequence(sequence) => sequence.expire(now_ns, output),
        }
    }

    /// Rejects what has timed out, without forming a batch: for the time while every instance
    /// executes.
    pub fn expire(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        match self {
            Scheduler::Fifo(fifo) => fifo.poll_state(),
            Scheduler::Dynamic(dynamic) => dynamic.expire(now_ns, output),
            Scheduler::Sequence(sequence) => sequence.expire(now_ns, output),
        }
    }
}
