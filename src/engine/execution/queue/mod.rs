//! A model's queue: its inbox, its scheduler, and the cores that drive it.

pub mod draining;
mod hand_over;
mod inline;
mod inline_seats;
mod streams;
mod submit;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use conch_log::LogLimiter;
use conch_scheduler::{
    BACKLOG_VARIABLE, EntryKind, REQUESTS_VARIABLE, Scheduler, SchedulerDelay, SchedulerOutput,
    SchedulingParams, SequenceContext, SequenceKey,
};
use conch_sync::{
    Drained, Inbox, LimitedWait, NEVER_NS, PollState, Spin, TrialBackoff, Worker, WorkerPool,
};

use crate::backend::BatchStrategy;
use crate::clock::{Monotonic, monotonic_ns};
use crate::execution::active_sequences::ActiveSequences;
use crate::execution::batch_policy::BatchStrategyAdapter;
use crate::execution::instance_usage::UsageGauges;
use crate::execution::queue::draining::DrainingVersions;
use crate::execution::queue::inline::FIRST_REFUSALS;
use crate::execution::queue::inline_seats::InlineSeats;
pub(crate) use crate::execution::queue::streams::StreamTurn;
use crate::execution::rate_limiter::ResourceHandle;
use crate::execution::seat::Seat;
use crate::execution::sequence_answers::{returned, turn_away};
use crate::model::admission_plan::preserves_order;
use crate::request::refusal::{cancel, has_refusals, reject};
use crate::request::stages::RequestStage;
use crate::response_order::ResponseOrder;
use crate::sequence::growable_slots::{GrowableSlots, SlotPlace};
use crate::threads::timer_thread::TimerThread;
use crate::{Error, OwnedRequest, PendingResponses, RequestContext, RequestHandle};

impl EntryKind for RequestContext {
    fn facts(&self) -> &SchedulingParams {
        &self.facts
    }

    fn member(&self) -> Option<&SequenceContext> {
        self.member.as_deref()
    }
}

/// The delay of the first batch that the environment of the process asks for, if any.
fn delay_from_environment() -> Option<SchedulerDelay> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    SchedulerDelay::parse(&variable(REQUESTS_VARIABLE), &variable(BACKLOG_VARIABLE))
}

/// The queue of a model version, with its scheduler.
pub struct ModelQueue {
    pool: WorkerPool<RequestHandle, Scheduler<RequestHandle>>,
    /// By core: requests of sequences that it executed and that have come back. Empty where the
    /// scheduler does not ask for them.
    returns: Box<[Inbox<RequestHandle>]>,
    timer_thread: Arc<TimerThread>,
    core_count_max: usize,
    /// The earliest deadline that the timer thread has for this queue.
    watched_ns: AtomicU64,
    /// No sequence starts any more.
    is_stopping: AtomicBool,
    /// Present once its sequences are being handed over: those that are under way.
    pub(crate) active_sequences: OnceLock<Arc<ActiveSequences>>,
    /// Which slots have states in the memory of a GPU.
    pub(crate) growable_slots: Arc<GrowableSlots>,
    has_growable_states: bool,
    /// Of sequences that start while they are under way.
    log_limiter: LogLimiter,
    config: Arc<conch_config::ResolvedConfig>,
    /// A library of the model's own has a say in its batches.
    has_strategy: bool,
    /// Who executes, for the metrics.
    pub(crate) usage: Arc<UsageGauges>,
    /// Where threads that submit may execute.
    inline_seats: InlineSeats,
    inline_backoff: TrialBackoff,
    /// Of offers for brief executions.
    brief_backoff: TrialBackoff,
    /// Of offers for short ones.
    short_backoff: TrialBackoff,
    /// Why it takes no more requests, if its device does not answer.
    fault: OnceLock<Error>,
    /// Called once, when there is a fault. No request takes this lock.
    fault_listener: Mutex<Option<FaultListener>>,
    /// Present under preserve-ordering.
    order: Option<Arc<ResponseOrder>>,
    /// Versions whose place its version took, for the sequences that go on there.
    pub draining_versions: DrainingVersions,
    own: Weak<ModelQueue>,
}

/// A limit that has passed: look, and do not wait.
const AT_ONCE_NS: u64 = 0;

/// See [`ModelQueue::when_failed`].
pub type FaultListener = Box<dyn FnOnce() + Send>;

/// What a core is to do next.
pub(crate) enum Turn {
    /// Execute the batch.
    Batch,
    /// Enter its seat, where another thread left a batch open.
    Call,
    /// End.
    Over,
}

impl ModelQueue {
    /// A queue for cores with so many instances each; it refuses requests of which the model's
    /// configuration cannot be honoured.
    ///
    /// # Errors
    /// UNSUPPORTED for more priority levels than are counted, INTERNAL for an ensemble, which has
    /// no queue.
    pub fn new(
        config: &Arc<conch_config::ResolvedConfig>,
        instance_counts: &[usize],
        timer_thread: Arc<TimerThread>,
        strategy: Option<Box<dyn BatchStrategy>>,
    ) -> Result<Arc<ModelQueue>, Error> {
        let has_strategy = strategy.is_some();
        let strategy = strategy.map(|strategy| Box::new(BatchStrategyAdapter(strategy)) as _);
        let mut scheduler = Scheduler::new(config, instance_counts, strategy)
            .ok_or_else(|| Error::internal(format!("ensemble '{}' has no queue", config.name)))?;
        if let Some(hold) = delay_from_environment() {
            conch_log::warning!(
                "model '{}' executes nothing until {} requests wait, and {} of sequences without a \
                 slot: the environment wants that",
                config.name,
                hold.request_count,
                hold.backlog_count
            );
            scheduler.hold(hold);
        }
        let core_count_max = core_count_max(instance_counts.len());
        let mut returns = Vec::new();
        if let Scheduler::Sequence(sequence) = &scheduler
            && sequence.awaits()
        {
            returns.resize_with(core_count_max, Inbox::default);
        }
        let usage = Arc::new(UsageGauges::for_cores(instance_counts.len()));
        usage.note_slots(&scheduler);
        let pool = WorkerPool::with_addressed_workers(scheduler, core_count_max);
        Ok(Arc::new_cyclic(|own| ModelQueue {
            pool,
            returns: returns.into(),
            core_count_max,
            timer_thread,
            watched_ns: AtomicU64::new(NEVER_NS),
            is_stopping: AtomicBool::new(false),
            active_sequences: OnceLock::new(),
            growable_slots: Arc::default(),
            has_growable_states: has_growable_states(config),
            log_limiter: LogLimiter::default(),
            config: Arc::clone(config),
            has_strategy,
            usage,
            inline_seats: InlineSeats::default(),
            inline_backoff: TrialBackoff::skipping(FIRST_REFUSALS),
            brief_backoff: TrialBackoff::skipping(0),
            short_backoff: TrialBackoff::skipping(0),
            fault: OnceLock::new(),
            fault_listener: Mutex::default(),
            order: preserves_order(config).then(Arc::default),
            draining_versions: DrainingVersions::default(),
            own: Weak::clone(own),
        }))
    }

    pub(crate) fn config(&self) -> &Arc<conch_config::ResolvedConfig> {
        &self.config
    }

    /// How many cores may ever come, counted from the load: a number is used once.
    pub(crate) fn core_count_max(&self) -> usize {
        self.core_count_max
    }

    /// Lets a core go once it has executed what it has. Another must stay.
    pub(crate) fn dismiss(&self, core: usize) {
        self.pool.dismiss(core);
    }

    /// The calling thread's side, as core number `core`.
    pub(crate) fn worker(&self, core: usize, spin: Spin) -> Worker {
        self.pool.worker(core, spin)
    }

    /// Waits for the next batch; over once the queue is closed and drained, or the core dismissed.
    /// Requests whose timeout passed are answered on the way.
    ///
    /// With a `resources` the batch forms once that is held, and what it held for the batch before
    /// is given back.
    pub(crate) fn next(
        &self,
        worker: &mut Worker,
        seat: &Seat,
        resources: Option<&mut ResourceHandle>,
        output: &mut SchedulerOutput<OwnedRequest>,
        pending: &mut PendingResponses,
    ) -> Turn {
        if let Some(resources) = resources {
            return self.next_limited(worker, resources, output, pending);
        }
        let turn = self.next_before(worker, seat, NEVER_NS, output, pending);
        turn.unwrap_or(Turn::Over)
    }

    /// As [`ModelQueue::next`] without resources, but does not wait; none without a batch.
    pub(crate) fn next_now(
        &self,
        worker: &mut Worker,
        seat: &Seat,
        output: &mut SchedulerOutput<OwnedRequest>,
        pending: &mut PendingResponses,
    ) -> Option<Turn> {
        self.next_before(worker, seat, AT_ONCE_NS, output, pending)
    }

    /// Waits until `limit_ns` at most, and not at all if that has passed.
    fn next_before(
        &self,
        worker: &mut Worker,
        seat: &Seat,
        limit_ns: u64,
        output: &mut SchedulerOutput<OwnedRequest>,
        pending: &mut PendingResponses,
    ) -> Option<Turn> {
        let core = worker.core();
        loop {
            // The vectors are lent to the batch that comes back, so that none is allocated per
            // batch.
            let wait = self.pool.next_until(
                worker,
                &Monotonic,
                limit_ns,
                |scheduler, arrivals, now_ns| {
                    if seat.answers_call() {
                        accept(scheduler, arrivals, now_ns, output);
                        self.usage.note_slots(scheduler);
                        return (Some(true), scheduler.peek(now_ns, output));
                    }
                    let (work, poll_state) =
                        self.form_work(core, scheduler, arrivals, now_ns, output);
                    (work.map(|()| false), poll_state)
                },
            );
            let turn = match wait {
                LimitedWait::Batch(turn) => turn,
                LimitedWait::TimedOut => return None,
                LimitedWait::Over => return Some(self.part_with(worker)),
            };
            self.answer_unexecuted(turn.unwatched_deadline_ns, output, pending);
            if turn.batch {
                return Some(Turn::Call);
            }
            if !output.batch.is_empty() {
                return Some(Turn::Batch);
            }
        }
    }

    fn next_limited(
        &self,
        worker: &mut Worker,
        resources: &mut ResourceHandle,
        output: &mut SchedulerOutput<OwnedRequest>,
        pending: &mut PendingResponses,
    ) -> Turn {
        let core = worker.core();
        if resources.is_held() {
            // At once for the next turn, if it will have work: otherwise others would get ahead of
            // it between two of its requests.
            if self.pool.is_due(&Monotonic) {
                resources.renew();
            } else {
                resources.release(true);
            }
        }
        loop {
            if !resources.is_held() {
                // Whoever asks for its resources leaves the queue to its siblings, as if it
                // executed.
                let turn = self
                    .pool
                    .next(worker, &Monotonic, |scheduler, arrivals, now_ns| {
                        accept(scheduler, arrivals, now_ns, output);
                        self.usage.note_slots(scheduler);
                        let poll_state = scheduler.peek(now_ns, output);
                        let is_work = poll_state.is_ready || has_refusals(output);
                        (is_work.then_some(poll_state.is_ready), poll_state)
                    });
                let Some(turn) = turn else {
                    return self.part_with(worker);
                };
                self.answer_unexecuted(turn.unwatched_deadline_ns, output, pending);
                if !turn.batch {
                    continue;
                }
                resources.acquire();
            }
            let visited = self
                .pool
                .try_drive(&Monotonic, |scheduler, arrivals, now_ns| {
                    let poll_state = self.form(core, scheduler, arrivals, now_ns, output);
                    ((), poll_state)
                });
            self.answer_unexecuted(deadline_of(visited).1, output, pending);
            if !output.batch.is_empty() {
                return Turn::Batch;
            }
            // A sibling was faster, or has the lock.
            resources.release(false);
        }
    }

    /// Under the lock: lets the scheduler accept what has arrived and come back, and form one batch
    /// for `core`.
    fn form(
        &self,
        core: usize,
        scheduler: &mut Scheduler<RequestHandle>,
        arrivals: Drained<RequestHandle>,
        now_ns: u64,
        output: &mut SchedulerOutput<OwnedRequest>,
    ) -> PollState {
        accept(scheduler, arrivals, now_ns, output);
        if let Scheduler::Sequence(sequence) = &mut *scheduler {
            if let Some(returns) = self.returns.get(core) {
                returned(sequence, returns.take_all(), now_ns, output);
            }
            self.end_restarted(sequence, now_ns);
        }
        let poll_state = scheduler.form(core, now_ns, output);
        self.free_growable_states(scheduler);
        for live in &mut output.batch {
            leave_queue(live);
        }
        if let Scheduler::Sequence(sequence) = &*scheduler
            && !sequence.awaits()
            && !output.batch.is_empty()
        {
            // That it asks again is how its batch comes back: before, no sequence of it idles.
            self.pool.notify_locked(core);
        }
        self.route_output(output);
        self.usage.note_slots(scheduler);
        poll_state
    }

    /// As [`ModelQueue::form`]. There is work if there is a batch, or somebody to answer.
    fn form_work(
        &self,
        core: usize,
        scheduler: &mut Scheduler<RequestHandle>,
        arrivals: Drained<RequestHandle>,
        now_ns: u64,
        output: &mut SchedulerOutput<OwnedRequest>,
    ) -> (Option<()>, PollState) {
        let poll_state = self.form(core, scheduler, arrivals, now_ns, output);
        let is_work = !output.batch.is_empty() || has_refusals(output);
        (is_work.then_some(()), poll_state)
    }

    /// Under the lock: gives up the memory of states whose sequence is over.
    fn free_growable_states(&self, scheduler: &Scheduler<RequestHandle>) {
        if self.has_growable_states
            && let Scheduler::Sequence(sequence) = scheduler
        {
            let is_free = |at: SlotPlace| sequence.is_free(at.core, at.instance, at.row);
            self.growable_slots.sweep(is_free);
        }
    }

    /// After the lock: answers who is not executed, and has a deadline watched that no core
    /// watches.
    fn answer_unexecuted(
        &self,
        unwatched_deadline_ns: Option<u64>,
        output: &mut SchedulerOutput<OwnedRequest>,
        pending: &mut PendingResponses,
    ) {
        if let Some(deadline_ns) = unwatched_deadline_ns {
            self.watch_deadline(deadline_ns);
        }
        reject(&mut output.expired, pending);
        cancel(&mut output.cancelled, pending);
        turn_away(&mut output.refused, pending);
        self.warn(&mut output.conflicts);
    }

    /// What a core would execute now, for tests that are the model's only core.
    #[cfg(test)]
    pub(crate) fn form_now(&self) -> Vec<OwnedRequest> {
        let mut output = SchedulerOutput::default();
        let visited = self
            .pool
            .try_drive(&Monotonic, |scheduler, arrivals, now_ns| {
                let poll_state = self.form(0, scheduler, arrivals, now_ns, &mut output);
                ((), poll_state)
            });
        self.answer_unexecuted(
            deadline_of(visited).1,
            &mut output,
            &mut PendingResponses::default(),
        );
        output.batch
    }

    /// Passes on what the scheduler says beside its batch. Under the lock.
    fn route_output(&self, output: &mut SchedulerOutput<OwnedRequest>) {
        for core in output.called.drain(..) {
            self.pool.notify_locked(core);
        }
        if !output.ended.is_empty()
            && let Some(active_sequences) = self.active_sequences.get()
        {
            active_sequences.close(output.ended.drain(..));
        }
    }

    /// A core has no further batch.
    fn part_with(&self, worker: &Worker) -> Turn {
        if let Some(deadline_ns) = worker.unwatched_deadline_ns() {
            self.watch_deadline(deadline_ns);
        }
        Turn::Over
    }

    /// Refuses requests that start a sequence; those under way may go on until
    /// [`ModelQueue::close`].
    pub(crate) fn refuse_starts(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Whether it takes no more requests, or none that start anything.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed) || self.pool.is_closing()
    }

    /// Refuses further requests for `error`. Cores that have an instance left execute what is
    /// queued, others refuse it.
    pub(crate) fn fail(&self, error: Error) {
        // Failure: the first reason stands.
        let _ = self.fault.set(error);
        self.pool.close();
        self.tell_fault();
    }

    /// Has `listener` told once when the model serves no more as a device does not answer: on a
    /// core's thread, or at once on this one. It does not block.
    pub fn when_failed(&self, listener: FaultListener) {
        *self.fault_listener() = Some(listener);
        if self.fault.get().is_some() {
            self.tell_fault();
        }
    }

    fn tell_fault(&self) {
        let listener = self.fault_listener().take();
        if let Some(listener) = listener {
            listener();
        }
    }

    fn fault_listener(&self) -> MutexGuard<'_, Option<FaultListener>> {
        self.fault_listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it takes no more requests, if its device does not answer.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.fault.get()
    }

    /// Refuses further requests; what is queued is still executed.
    pub(crate) fn close(&self) {
        self.pool.close();
    }

    /// Leaves a deadline to the timer thread, unless it has an earlier one.
    pub(crate) fn watch_deadline(&self, deadline_ns: u64) {
        // The load first: nearly always an earlier request's timeout is pending already.
        if self.watched_ns.load(Ordering::Acquire) <= deadline_ns
            || self.watched_ns.fetch_min(deadline_ns, Ordering::AcqRel) <= deadline_ns
        {
            return;
        }
        let queue = Weak::clone(&self.own);
        self.timer_thread.call_at(deadline_ns, move |_| {
            if let Some(queue) = queue.upgrade() {
                queue.expire_overdue(deadline_ns);
            }
        });
    }

    /// The timer thread's call: rejects what has timed out while every core executes.
    fn expire_overdue(&self, watched_ns: u64) {
        // Failure: an earlier deadline came in between, and its call is this one's predecessor or
        // still to come.
        let _ = self.watched_ns.compare_exchange(
            watched_ns,
            NEVER_NS,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        self.inspect(|_, _| ());
    }

    /// Sees to what has arrived and what has timed out, from outside the cores, then has a `look`.
    /// None if somebody else has the lock.
    fn inspect<R>(&self, look: impl FnOnce(&mut Scheduler<RequestHandle>, u64) -> R) -> Option<R> {
        let mut output = SchedulerOutput::default();
        let visited = self
            .pool
            .try_drive(&Monotonic, |scheduler, arrivals, now_ns| {
                accept(scheduler, arrivals, now_ns, &mut output);
                if let Scheduler::Sequence(sequence) = &mut *scheduler {
                    self.end_restarted(sequence, now_ns);
                }
                scheduler.expire(now_ns, &mut output);
                self.free_growable_states(scheduler);
                let seen = look(scheduler, now_ns);
                // What it did may want cores to be called.
                let poll_state = scheduler.expire(now_ns, &mut output);
                self.route_output(&mut output);
                self.usage.note_slots(scheduler);
                (seen, poll_state)
            });
        // Without a visit a core holds the lock: it has been told, looks again, and entrusts what
        // it leaves.
        let mut pending = PendingResponses::default();
        let (seen, deadline_ns) = deadline_of(visited);
        self.answer_unexecuted(deadline_ns, &mut output, &mut pending);
        seen
    }

    /// Tells of sequences that started while they were under way: in all likelihood two clients
    /// have the same id.
    fn warn(&self, conflicts: &mut Vec<SequenceKey>) {
        for key in conflicts.drain(..) {
            self.log_limiter.warn(
                monotonic_ns(),
                format_args!(
                    "sequence {key} for model '{}' has a conflict. The previous sequence did not \
                     end before this sequence start. Previous sequence will be terminated early.",
                    self.config.name
                ),
            );
        }
    }
}

impl fmt::Debug for ModelQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

fn accept(
    scheduler: &mut Scheduler<RequestHandle>,
    arrivals: Drained<RequestHandle>,
    now_ns: u64,
    output: &mut SchedulerOutput<OwnedRequest>,
) {
    for handle in arrivals {
        if let Some(stages) = &handle.shared().features.stages {
            stages.reach(RequestStage::Accepted, now_ns);
        }
        scheduler.accept(handle, now_ns, output);
    }
}

/// What a visit made, and what it leaves to the timer thread.
fn deadline_of<R>(visited: Option<(R, PollState)>) -> (Option<R>, Option<u64>) {
    let Some((made, PollState { deadline_ns, .. })) = visited else {
        return (None, None);
    };
    (Some(made), (deadline_ns != NEVER_NS).then_some(deadline_ns))
}

/// A request is in a batch: it pends no longer, and under preserve-ordering it has its turn.
fn leave_queue(live: &mut OwnedRequest) {
    live.place = None;
    if let Some(turn) = &live.shared().features.turn {
        turn.reserve();
    }
}

fn has_growable_states(config: &conch_config::ResolvedConfig) -> bool {
    conch_config::states(config).is_ok_and(|states| states.iter().any(|state| state.is_growable))
}

/// Room for the cores that a model begins with and for those that come later, in whole words of the
/// idle set: a parker has 24 bytes, so a model pays at most 1.5 KB for cores that never come.
fn core_count_max(core_count: usize) -> usize {
    core_count.max(1).next_multiple_of(64)
}
