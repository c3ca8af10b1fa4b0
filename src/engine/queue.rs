//! A model's queue: its inbox, its scheduler, and the cores that drive it.

mod entry;
mod hand_over;
mod places;
mod refusal;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use conch_sync::{Clock, Drained, Inbox, NEVER_NS, PollState, Refused, Spin, Worker, WorkerPool};

use crate::backend::BatchStrategy;
use crate::clock::monotonic_ns;
use crate::rate::ResourceHandle;
use crate::scheduler::{
    EntryKind, Scheduler, SchedulerDelay, SchedulerOutput, SchedulingParams, SequenceContext,
    SequenceKey,
};
use crate::sequence::{ActiveSequences, returned, turn_away};
use crate::shown::BatchStrategyAdapter;
use crate::timekeeper::TimerThread;
use crate::{Error, LogLimiter, OwnedRequest, PendingResponses, RequestContext, RequestHandle};
use refusal::{cancel, has_refusals, reject};

pub(crate) use places::LevelBounds;
pub use places::PendingPermit;
pub use refusal::withdraw;
pub(crate) use refusal::{CancelOutcome, SubmitRefusal, mark_cancelled, refuse, stopping};

impl EntryKind for RequestContext {
    fn facts(&self) -> &SchedulingParams {
        &self.facts
    }

    fn member(&self) -> Option<&SequenceContext> {
        self.member.as_deref()
    }
}

/// The clock of cores.
pub(crate) struct Monotonic;

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    #[cfg(loom)]
    fn jump_to(&self, _: u64) {}
}

/// See the module.
pub(crate) struct ModelQueue {
    pool: WorkerPool<RequestHandle, Scheduler<RequestHandle>>,
    /// By core: requests of sequences that it executed and that have come back. Empty where the scheduler does not ask for them.
    returns: Box<[Inbox<RequestHandle>]>,
    timekeeper: Arc<TimerThread>,
    core_count_max: usize,
    /// The earliest deadline that the timekeeper has for this queue.
    entrusted_ns: AtomicU64,
    /// No sequence starts any more.
    is_stopping: AtomicBool,
    /// Present once its sequences are being handed over: those that are under way.
    ledger: OnceLock<Arc<ActiveSequences>>,
    /// Of sequences that start while they are under way.
    complaints: LogLimiter,
    name: Arc<str>,
}

impl ModelQueue {
    /// A queue for cores with so many instances each; it refuses requests of which the model's configuration cannot be honoured.
    ///
    /// # Errors
    /// UNSUPPORTED for more priority levels than are counted, INTERNAL for an ensemble, which has no queue.
    pub(crate) fn new(
        config: &conch_config::ResolvedConfig,
        instance_counts: &[usize],
        timekeeper: Arc<TimerThread>,
        strategy: Option<Box<dyn BatchStrategy>>,
    ) -> Result<ModelQueue, Error> {
        let strategy = strategy.map(|strategy| Box::new(BatchStrategyAdapter(strategy)) as _);
        let mut scheduler = Scheduler::new(config, instance_counts, strategy)
            .ok_or_else(|| Error::internal(format!("ensemble '{}' has no queue", config.name)))?;
        if let Some(hold) = SchedulerDelay::from_environment() {
            crate::log::warning!(
                "model '{}' executes nothing until {} requests wait, and {} of sequences without a slot: the environment wants that",
                config.name,
                hold.request_count,
                hold.backlog_count
            );
            scheduler.hold(hold);
        }
        let core_count_max = core_count_max(instance_counts.len());
        let mut returns = Vec::new();
        let pool = match &scheduler {
            Scheduler::Sequence(sequence) => {
                if sequence.awaits() {
                    returns.resize_with(core_count_max, Inbox::default);
                }
                WorkerPool::with_addressed_workers(scheduler, core_count_max)
            }
            _ => WorkerPool::new(scheduler, core_count_max),
        };
        Ok(ModelQueue {
            pool,
            returns: returns.into(),
            core_count_max,
            timekeeper,
            entrusted_ns: AtomicU64::new(NEVER_NS),
            is_stopping: AtomicBool::new(false),
            ledger: OnceLock::new(),
            complaints: LogLimiter::default(),
            name: Arc::clone(&config.name),
        })
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

    /// Waits for the next batch; false once the queue is closed and drained, or the core dismissed. Requests whose timeout passed are answered on the way.
    ///
    /// With a `seat` the batch forms once that is held, and what it held for the batch before is given back.
    pub(crate) fn next(
        self: &Arc<Self>,
        worker: &mut Worker,
        seat: Option<&mut ResourceHandle>,
        harvest: &mut SchedulerOutput<OwnedRequest>,
        departures: &mut PendingResponses,
    ) -> bool {
        if let Some(seat) = seat {
            return self.next_limited(worker, seat, harvest, departures);
        }
        let core = worker.core();
        loop {
            // The vectors are lent to the batch that comes back, so that none is allocated per batch.
            let turn = self
                .pool
                .next(worker, &Monotonic, |scheduler, arrivals, now_ns| {
                    let poll_state = self.form(core, scheduler, arrivals, now_ns, harvest);
                    let is_work = !harvest.batch.is_empty() || has_refusals(harvest);
                    (is_work.then_some(()), poll_state)
                });
            let Some(turn) = turn else {
                return self.part_with(worker);
            };
            self.settle(turn.unwatched_deadline_ns, harvest, departures);
            if !harvest.batch.is_empty() {
                return true;
            }
        }
    }

    fn next_limited(
        self: &Arc<Self>,
        worker: &mut Worker,
        seat: &mut ResourceHandle,
        harvest: &mut SchedulerOutput<OwnedRequest>,
        departures: &mut PendingResponses,
    ) -> bool {
        let core = worker.core();
        if seat.is_held() {
            // At once for the next turn, if it will have work: otherwise others would get ahead of it between two of its requests.
            if self.pool.is_due(&Monotonic) {
                seat.renew();
            } else {
                seat.release(true);
            }
        }
        loop {
            if !seat.is_held() {
                // Whoever asks for its seat leaves the queue to its siblings, as if it executed.
                let turn = self
                    .pool
                    .next(worker, &Monotonic, |scheduler, arrivals, now_ns| {
                        accept(scheduler, arrivals, now_ns, harvest);
                        let poll_state = scheduler.look(now_ns, harvest);
                        let is_work = poll_state.is_ready || has_refusals(harvest);
                        (is_work.then_some(poll_state.is_ready), poll_state)
                    });
                let Some(turn) = turn else {
                    return self.part_with(worker);
                };
                self.settle(turn.unwatched_deadline_ns, harvest, departures);
                if !turn.batch {
                    continue;
                }
                seat.acquire();
            }
            let visited = self
                .pool
                .try_drive(&Monotonic, |scheduler, arrivals, now_ns| {
                    let poll_state = self.form(core, scheduler, arrivals, now_ns, harvest);
                    ((), poll_state)
                });
            self.settle(deadline_of(visited).1, harvest, departures);
            if !harvest.batch.is_empty() {
                return true;
            }
            // A sibling was faster, or has the lock.
            seat.release(false);
        }
    }

    /// Under the lock: lets the scheduler accept what has arrived and come back, and form one batch for `core`.
    fn form(
        &self,
        core: usize,
        scheduler: &mut Scheduler<RequestHandle>,
        arrivals: Drained<RequestHandle>,
        now_ns: u64,
        harvest: &mut SchedulerOutput<OwnedRequest>,
    ) -> PollState {
        accept(scheduler, arrivals, now_ns, harvest);
        if let Scheduler::Sequence(sequence) = &mut *scheduler {
            if let Some(returns) = self.returns.get(core) {
                returned(sequence, returns.take_all(), now_ns, harvest);
            }
            self.end_restarted(sequence, now_ns);
        }
        let poll_state = scheduler.form(core, now_ns, harvest);
        for live in &mut harvest.batch {
            leave_queue(live);
        }
        if let Scheduler::Sequence(sequence) = &*scheduler
            && !sequence.awaits()
            && !harvest.batch.is_empty()
        {
            // That it asks again is how its batch comes back: before, no sequence of it idles.
            self.pool.notify_locked(core);
        }
        self.pass_on(harvest);
        poll_state
    }

    /// After the lock: answers who is not executed, and has a deadline watched that no core watches.
    fn settle(
        self: &Arc<Self>,
        unwatched_deadline_ns: Option<u64>,
        harvest: &mut SchedulerOutput<OwnedRequest>,
        departures: &mut PendingResponses,
    ) {
        if let Some(deadline_ns) = unwatched_deadline_ns {
            self.entrust(deadline_ns);
        }
        reject(&mut harvest.expired, departures);
        cancel(&mut harvest.cancelled, departures);
        turn_away(&mut harvest.refused, departures);
        self.warn(&mut harvest.conflicts);
    }

    /// What a core would execute now, for tests that are the model's only core.
    #[cfg(test)]
    pub(crate) fn form_now(self: &Arc<Self>) -> Vec<OwnedRequest> {
        let mut harvest = SchedulerOutput::default();
        let visited = self
            .pool
            .try_drive(&Monotonic, |scheduler, arrivals, now_ns| {
                let poll_state = self.form(0, scheduler, arrivals, now_ns, &mut harvest);
                ((), poll_state)
            });
        self.settle(
            deadline_of(visited).1,
            &mut harvest,
            &mut PendingResponses::default(),
        );
        harvest.batch
    }

    pub(crate) fn submit(
        self: &Arc<Self>,
        ticket: RequestHandle,
    ) -> Result<(), Refused<RequestHandle>> {
        let is_member = ticket.shared().member.is_some();
        self.pool.submit(ticket)?;
        if is_member && self.pool.is_busy() {
            // It may be one that is not to be queued at all, and nobody else looks before an execution ends. Nor may whoever has the
            // lock, if that is a core that leaves with its batch.
            if self.inspect(|_, _| ()).is_none() {
                self.entrust(monotonic_ns());
            }
        }
        Ok(())
    }

    /// A request of a sequence was cancelled: its scheduler decides what that means, soon, whoever executes.
    fn report_cancel(self: &Arc<Self>, ticket: RequestHandle) {
        // Failure: the request is linked in a queue, and the thread that takes it out sees the mark; or it executes as the last of its model.
        let _ = self.pool.submit(ticket);
        self.entrust(monotonic_ns());
    }

    /// A request that core `core` executed is done with, or is to be run again.
    pub(crate) fn take_back(&self, ticket: RequestHandle, core: usize) {
        let Some(returns) = self.returns.get(core) else {
            return;
        };
        if let Some(member) = &ticket.shared().member {
            member.bring_back();
        }
        // Failure: somebody wanted it cancelled just now, and it lies in the inbox, where the scheduler finds it.
        let _ = returns.push(ticket);
        self.pool.notify(core);
    }

    /// Passes on what the scheduler says beside its batch. Under the lock.
    fn pass_on(&self, harvest: &mut SchedulerOutput<OwnedRequest>) {
        for core in harvest.called.drain(..) {
            self.pool.notify_locked(core);
        }
        if !harvest.ended.is_empty()
            && let Some(ledger) = self.ledger.get()
        {
            ledger.close(harvest.ended.drain(..));
        }
    }

    /// A core has no further batch.
    fn part_with(self: &Arc<Self>, worker: &Worker) -> bool {
        if let Some(deadline_ns) = worker.unwatched_deadline_ns() {
            self.entrust(deadline_ns);
        }
        false
    }

    /// Refuses requests that start a sequence; those under way may go on until [`ModelQueue::close`].
    pub(crate) fn refuse_starts(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Whether it takes no more requests, or none that start anything.
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed) || self.pool.is_closing()
    }

    /// Refuses further requests; what is queued is still executed.
    pub(crate) fn close(&self) {
        self.pool.close();
    }

    /// Leaves a deadline to the timekeeper, unless it has an earlier one.
    fn entrust(self: &Arc<Self>, deadline_ns: u64) {
        // The load first: nearly always an earlier request's timeout is pending already.
        if self.entrusted_ns.load(Ordering::Acquire) <= deadline_ns
            || self.entrusted_ns.fetch_min(deadline_ns, Ordering::AcqRel) <= deadline_ns
        {
            return;
        }
        let queue = Arc::downgrade(self);
        self.timekeeper.call_at(deadline_ns, move |_| {
            if let Some(queue) = queue.upgrade() {
                queue.attend(deadline_ns);
            }
        });
    }

    /// The timekeeper's call: rejects what has timed out while every core executes.
    fn attend(self: &Arc<Self>, entrusted_ns: u64) {
        // Failure: an earlier deadline came in between, and its call is this one's predecessor or still to come.
        let _ = self.entrusted_ns.compare_exchange(
            entrusted_ns,
            NEVER_NS,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        self.inspect(|_, _| ());
    }

    /// Sees to what has arrived and what has timed out, from outside the cores, then has a `look`. None if somebody else has the lock.
    fn inspect<R>(
        self: &Arc<Self>,
        look: impl FnOnce(&mut Scheduler<RequestHandle>, u64) -> R,
    ) -> Option<R> {
        let mut harvest = SchedulerOutput::default();
        let visited = self
            .pool
            .try_drive(&Monotonic, |scheduler, arrivals, now_ns| {
                accept(scheduler, arrivals, now_ns, &mut harvest);
                if let Scheduler::Sequence(sequence) = &mut *scheduler {
                    self.end_restarted(sequence, now_ns);
                }
                scheduler.expire(now_ns, &mut harvest);
                let seen = look(scheduler, now_ns);
                // What it did may want cores to be called.
                let poll_state = scheduler.expire(now_ns, &mut harvest);
                self.pass_on(&mut harvest);
                (seen, poll_state)
            });
        // Without a visit a core holds the lock: it has been told, looks again, and entrusts what it leaves.
        let mut departures = PendingResponses::default();
        let (seen, deadline_ns) = deadline_of(visited);
        self.settle(deadline_ns, &mut harvest, &mut departures);
        seen
    }

    /// Tells of sequences that started while they were under way: in all likelihood two clients have the same id.
    fn warn(&self, conflicts: &mut Vec<SequenceKey>) {
        for key in conflicts.drain(..) {
            self.complaints.warn(
                monotonic_ns(),
                format_args!(
                    "sequence {key} for model '{}' has a conflict. The previous sequence did not end before this sequence start. Previous sequence will be terminated early.",
                    self.name
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
    harvest: &mut SchedulerOutput<OwnedRequest>,
) {
    for ticket in arrivals {
        scheduler.accept(ticket, now_ns, harvest);
    }
}

/// What a visit made, and what it leaves to the timekeeper.
fn deadline_of<R>(visited: Option<(R, PollState)>) -> (Option<R>, Option<u64>) {
    let Some((made, PollState { deadline_ns, .. })) = visited else {
        return (None, None);
    };
    (Some(made), (deadline_ns != NEVER_NS).then_some(deadline_ns))
}

/// A request is in a batch: it pends no longer, and under preserve-ordering it has its turn.
fn leave_queue(live: &mut OwnedRequest) {
    live.place = None;
    if let Some(turn) = &live.shared().turn {
        turn.reserve();
    }
}

/// Room for the cores that a model begins with and for those that come later, in whole words of the idle set: a bell has 24 bytes, so a
/// model pays at most 1.5 KB for cores that never come.
fn core_count_max(core_count: usize) -> usize {
    core_count.max(1).next_multiple_of(64)
}
