//! A model's queue: its inbox, its scheduler, and the cores that drive it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use conch_channel::{Chain, Clock, Fate, Inbox, NEVER_NS, Outlook, Refused, Relay, Runner, Spin};
use conch_config::{DynamicBatching, QueuePolicy, Scheduling};

use crate::backend::BatchStrategy;
use crate::clock::monotonic_ns;
use crate::rate::Seat;
use crate::scheduler::{
    Facts, Harvest, Hold, Key, Membership, Scheduler, Sequence, Subject, policy_of, rejection_ns,
};
use crate::sequence::{Ledger, returned, turn_away};
use crate::shown::Shown;
use crate::stats::Failure;
use crate::timekeeper::Timekeeper;
use crate::{Code, Complaints, Departures, Error, Live, ModelVersion, Origin, Ticket};

impl Subject for Origin {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn member(&self) -> Option<&Membership> {
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
pub(crate) struct Queue {
    relay: Relay<Ticket, Scheduler<Ticket>>,
    /// By core: requests of sequences that it executed and that have come back. Empty where the scheduler does not ask for them.
    returns: Box<[Inbox<Ticket>]>,
    timekeeper: Arc<Timekeeper>,
    core_count_max: usize,
    /// The earliest deadline that the timekeeper has for this queue.
    entrusted_ns: AtomicU64,
    /// No sequence starts any more.
    is_stopping: AtomicBool,
    /// Present once its sequences are being handed over: those that are under way.
    ledger: OnceLock<Arc<Ledger>>,
    /// Of sequences that start while they are under way.
    complaints: Complaints,
    name: Arc<str>,
}

impl Queue {
    /// A queue for cores with so many instances each; it refuses requests of which the model's configuration cannot be honoured.
    ///
    /// # Errors
    /// UNSUPPORTED for more priority levels than are counted, INTERNAL for an ensemble, which has no queue.
    pub(crate) fn new(
        config: &conch_config::Model,
        instance_counts: &[usize],
        timekeeper: Arc<Timekeeper>,
        strategy: Option<Box<dyn BatchStrategy>>,
    ) -> Result<Queue, Error> {
        let strategy = strategy.map(|strategy| Box::new(Shown(strategy)) as _);
        let mut scheduler = Scheduler::new(config, instance_counts, strategy)
            .ok_or_else(|| Error::internal(format!("ensemble '{}' has no queue", config.name)))?;
        if let Some(hold) = Hold::from_environment() {
            crate::log::warning!(
                "model '{}' executes nothing until {} requests wait, and {} of sequences without a slot: the environment wants that",
                config.name,
                hold.request_count,
                hold.backlog_count
            );
            scheduler.hold(hold);
        }
        if let Scheduling::Dynamic(settings) = &config.scheduling
            && settings.priority_levels > BOUNDED_LEVELS_MAX
        {
            return Err(Error::unsupported(format!(
                "model '{}' has {} priority levels, at most {BOUNDED_LEVELS_MAX} are supported",
                config.name, settings.priority_levels
            )));
        }
        let core_count_max = core_count_max(instance_counts.len());
        let mut returns = Vec::new();
        let relay = match &scheduler {
            Scheduler::Sequence(sequence) => {
                if sequence.awaits() {
                    returns.resize_with(core_count_max, Inbox::default);
                }
                Relay::calling(scheduler, core_count_max)
            }
            _ => Relay::new(scheduler, core_count_max),
        };
        Ok(Queue {
            relay,
            returns: returns.into(),
            core_count_max,
            timekeeper,
            entrusted_ns: AtomicU64::new(NEVER_NS),
            is_stopping: AtomicBool::new(false),
            ledger: OnceLock::new(),
            complaints: Complaints::default(),
            name: Arc::clone(&config.name),
        })
    }

    /// How many cores may ever come, counted from the load: a number is used once.
    pub(crate) fn core_count_max(&self) -> usize {
        self.core_count_max
    }

    /// Lets a core go once it has executed what it has. Another must stay.
    pub(crate) fn dismiss(&self, core: usize) {
        self.relay.dismiss(core);
    }

    /// [`Queue::dismiss`] for cores that have sequences, once these have ended. Blocks until then, for `patience` at most: what is left is
    /// ended.
    pub(crate) fn see_off(self: &Arc<Self>, mut cores: Vec<usize>, patience: Duration) {
        let deadline_ns =
            monotonic_ns().saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let is_late = monotonic_ns() >= deadline_ns;
            let mut ended_count = 0;
            let gone = self.inspect(|scheduler, now_ns| match scheduler {
                Scheduler::Sequence(sequence) => {
                    if is_late {
                        ended_count = cores
                            .iter()
                            .map(|core| sequence.end_all(*core, now_ns))
                            .sum();
                    }
                    let (gone, rest) = cores.iter().partition(|core| sequence.see_off(**core));
                    cores = rest;
                    gone
                }
                _ => std::mem::take(&mut cores),
            });
            if ended_count > 0 {
                crate::log::warning!(
                    "{ended_count} sequences end with the instances that they were in: they did not end in time"
                );
            }
            for core in gone.into_iter().flatten() {
                self.dismiss(core);
            }
            // Once it is closed its cores leave by themselves, when nothing waits.
            if cores.is_empty() || self.relay.is_closing() {
                return;
            }
            std::thread::sleep(DISMISSAL_LOOK);
        }
    }

    /// The calling thread's side, as core number `core`.
    pub(crate) fn runner(&self, core: usize, spin: Spin) -> Runner {
        self.relay.runner(core, spin)
    }

    /// Waits for the next batch; false once the queue is closed and drained, or the core dismissed. Requests whose timeout passed are answered on the way.
    ///
    /// With a `seat` the batch forms once that is held, and what it held for the batch before is given back.
    pub(crate) fn next(
        self: &Arc<Self>,
        runner: &mut Runner,
        seat: Option<&mut Seat>,
        harvest: &mut Harvest<Live>,
        departures: &mut Departures,
    ) -> bool {
        if let Some(seat) = seat {
            return self.next_limited(runner, seat, harvest, departures);
        }
        let core = runner.core();
        loop {
            // The vectors are lent to the batch that comes back, so that none is allocated per batch.
            let turn = self
                .relay
                .next(runner, &Monotonic, |scheduler, arrivals, now_ns| {
                    let outlook = self.form(core, scheduler, arrivals, now_ns, harvest);
                    let is_work = !harvest.batch.is_empty() || has_refusals(harvest);
                    (is_work.then_some(()), outlook)
                });
            let Some(turn) = turn else {
                return self.part_with(runner);
            };
            self.settle(turn.unwatched_deadline_ns, harvest, departures);
            if !harvest.batch.is_empty() {
                return true;
            }
        }
    }

    fn next_limited(
        self: &Arc<Self>,
        runner: &mut Runner,
        seat: &mut Seat,
        harvest: &mut Harvest<Live>,
        departures: &mut Departures,
    ) -> bool {
        let core = runner.core();
        if seat.is_held() {
            // At once for the next turn, if it will have work: otherwise others would get ahead of it between two of its requests.
            if self.relay.is_due(&Monotonic) {
                seat.renew();
            } else {
                seat.release(true);
            }
        }
        loop {
            if !seat.is_held() {
                // Whoever asks for its seat leaves the queue to its siblings, as if it executed.
                let turn = self
                    .relay
                    .next(runner, &Monotonic, |scheduler, arrivals, now_ns| {
                        accept(scheduler, arrivals, now_ns, harvest);
                        let outlook = scheduler.look(now_ns, harvest);
                        let is_work = outlook.is_ready || has_refusals(harvest);
                        (is_work.then_some(outlook.is_ready), outlook)
                    });
                let Some(turn) = turn else {
                    return self.part_with(runner);
                };
                self.settle(turn.unwatched_deadline_ns, harvest, departures);
                if !turn.batch {
                    continue;
                }
                seat.acquire();
            }
            let visited = self.relay.visit(&Monotonic, |scheduler, arrivals, now_ns| {
                let outlook = self.form(core, scheduler, arrivals, now_ns, harvest);
                ((), outlook)
            });
            self.settle(deadline_of(visited).1, harvest, departures);
            if !harvest.batch.is_empty() {
                return true;
            }
            // A sibling was faster, or has the baton.
            seat.release(false);
        }
    }

    /// Under the baton: lets the scheduler accept what has arrived and come back, and form one batch for `core`.
    fn form(
        &self,
        core: usize,
        scheduler: &mut Scheduler<Ticket>,
        arrivals: Chain<Ticket>,
        now_ns: u64,
        harvest: &mut Harvest<Live>,
    ) -> Outlook {
        accept(scheduler, arrivals, now_ns, harvest);
        if let Scheduler::Sequence(sequence) = &mut *scheduler {
            if let Some(returns) = self.returns.get(core) {
                returned(sequence, returns.take_all(), now_ns, harvest);
            }
            self.end_restarted(sequence, now_ns);
        }
        let outlook = scheduler.form(core, now_ns, harvest);
        for live in &mut harvest.batch {
            leave_queue(live);
        }
        if let Scheduler::Sequence(sequence) = &*scheduler
            && !sequence.awaits()
            && !harvest.batch.is_empty()
        {
            // That it asks again is how its batch comes back: before, no sequence of it idles.
            self.relay.mark(core);
        }
        self.pass_on(harvest);
        outlook
    }

    /// After the baton: answers who is not executed, and has a deadline watched that no core watches.
    fn settle(
        self: &Arc<Self>,
        unwatched_deadline_ns: Option<u64>,
        harvest: &mut Harvest<Live>,
        departures: &mut Departures,
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
    pub(crate) fn form_now(self: &Arc<Self>) -> Vec<Live> {
        let mut harvest = Harvest::default();
        let visited = self.relay.visit(&Monotonic, |scheduler, arrivals, now_ns| {
            let outlook = self.form(0, scheduler, arrivals, now_ns, &mut harvest);
            ((), outlook)
        });
        self.settle(
            deadline_of(visited).1,
            &mut harvest,
            &mut Departures::default(),
        );
        harvest.batch
    }

    pub(crate) fn submit(self: &Arc<Self>, ticket: Ticket) -> Result<(), Refused<Ticket>> {
        let is_member = ticket.shared().member.is_some();
        self.relay.submit(ticket)?;
        if is_member && self.relay.is_busy() {
            // It may be one that is not to be queued at all, and nobody else looks before an execution ends. Nor may whoever has the
            // baton, if that is a core that leaves with its batch.
            if self.inspect(|_, _| ()).is_none() {
                self.entrust(monotonic_ns());
            }
        }
        Ok(())
    }

    /// A request of a sequence was cancelled: its scheduler decides what that means, soon, whoever executes.
    fn report_cancel(self: &Arc<Self>, ticket: Ticket) {
        // Failure: whoever takes it out of a pile sees the mark; or it is executed, as the last of its model.
        let _ = self.relay.submit(ticket);
        self.entrust(monotonic_ns());
    }

    /// A request that core `core` executed is done with, or is to be run again.
    pub(crate) fn take_back(&self, ticket: Ticket, core: usize) {
        let Some(returns) = self.returns.get(core) else {
            return;
        };
        if let Some(member) = &ticket.shared().member {
            member.bring_back();
        }
        // Failure: somebody wanted it cancelled just now, and it lies in the inbox, where the scheduler finds it.
        let _ = returns.push(ticket);
        self.relay.call(core);
    }

    /// Passes on what the scheduler says beside its batch. Under the baton.
    fn pass_on(&self, harvest: &mut Harvest<Live>) {
        for core in harvest.called.drain(..) {
            self.relay.mark(core);
        }
        if !harvest.ended.is_empty()
            && let Some(ledger) = self.ledger.get()
        {
            ledger.close(harvest.ended.drain(..));
        }
    }

    /// Ends sequences that began anew in another version.
    fn end_restarted(&self, sequence: &mut Sequence<Ticket>, now_ns: u64) {
        if let Some(ledger) = self.ledger.get() {
            for key in ledger.restarted() {
                sequence.end(&key, now_ns);
            }
        }
    }

    /// Begins to write down which sequences are under way: whoever asks before requests go elsewhere misses none. None if the model has no
    /// sequences, or if its cores leave no moment for a look. May block for so long.
    pub(crate) fn hand_over(self: &Arc<Self>) -> Option<Arc<Ledger>> {
        let ledger = self.ledger.get_or_init(Arc::default);
        // Whoever submits a start either sees the ledger afterwards, or its request is seen here.
        fence(Ordering::SeqCst);
        for _ in 0..HAND_OVER_LOOKS {
            let listed = self.inspect(|scheduler, _| match scheduler {
                Scheduler::Sequence(sequence) => {
                    ledger.list(sequence.hand_over());
                    true
                }
                _ => false,
            });
            match listed {
                Some(is_listed) => return is_listed.then(|| Arc::clone(ledger)),
                None => std::thread::sleep(HAND_OVER_PAUSE),
            }
        }
        None
    }

    /// How many sequences take requests; none if a core is just looking itself.
    pub(crate) fn sequence_count(self: &Arc<Self>) -> Option<usize> {
        self.inspect(|scheduler, _| match scheduler {
            Scheduler::Sequence(sequence) => sequence.open_count(),
            _ => 0,
        })
    }

    /// The ledger has sequences that began anew elsewhere.
    pub(crate) fn notice_restart(self: &Arc<Self>) {
        if self.inspect(|_, _| ()).is_none() {
            self.entrust(monotonic_ns());
        }
    }

    /// A core has no further batch.
    fn part_with(self: &Arc<Self>, runner: &Runner) -> bool {
        if let Some(deadline_ns) = runner.unwatched_deadline_ns() {
            self.entrust(deadline_ns);
        }
        false
    }

    /// Refuses requests that start a sequence; those under way may go on until [`Queue::close`].
    pub(crate) fn refuse_starts(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Whether it takes no more requests, or none that start anything.
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed) || self.relay.is_closing()
    }

    /// Refuses further requests; what is queued is still executed.
    pub(crate) fn close(&self) {
        self.relay.close();
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

    /// Sees to what has arrived and what has timed out, from outside the cores, then has a `look`. None if somebody else has the baton.
    fn inspect<R>(
        self: &Arc<Self>,
        look: impl FnOnce(&mut Scheduler<Ticket>, u64) -> R,
    ) -> Option<R> {
        let mut harvest = Harvest::default();
        let visited = self.relay.visit(&Monotonic, |scheduler, arrivals, now_ns| {
            accept(scheduler, arrivals, now_ns, &mut harvest);
            if let Scheduler::Sequence(sequence) = &mut *scheduler {
                self.end_restarted(sequence, now_ns);
            }
            scheduler.expire(now_ns, &mut harvest);
            let seen = look(scheduler, now_ns);
            // What it did may want cores to be called.
            let outlook = scheduler.expire(now_ns, &mut harvest);
            self.pass_on(&mut harvest);
            (seen, outlook)
        });
        // Without a visit a core holds the baton: it has been told, looks again, and entrusts what it leaves.
        let mut departures = Departures::default();
        let (seen, deadline_ns) = deadline_of(visited);
        self.settle(deadline_ns, &mut harvest, &mut departures);
        seen
    }

    /// Tells of sequences that started while they were under way: in all likelihood two clients have the same id.
    fn warn(&self, conflicts: &mut Vec<Key>) {
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

/// The baton is held for microseconds: a second of looks is far more than one that succeeds takes.
const HAND_OVER_LOOKS: usize = 10_000;
const HAND_OVER_PAUSE: Duration = Duration::from_micros(100);
/// How often it is looked whether a core that is to leave has a sequence left.
const DISMISSAL_LOOK: Duration = Duration::from_millis(20);

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

fn accept(
    scheduler: &mut Scheduler<Ticket>,
    arrivals: Chain<Ticket>,
    now_ns: u64,
    harvest: &mut Harvest<Live>,
) {
    for ticket in arrivals {
        scheduler.accept(ticket, now_ns, harvest);
    }
}

/// Whether some are to be answered without being executed.
fn has_refusals(harvest: &Harvest<Live>) -> bool {
    !(harvest.expired.is_empty() && harvest.cancelled.is_empty() && harvest.refused.is_empty())
}

/// What a visit made, and what it leaves to the timekeeper.
fn deadline_of<R>(visited: Option<(R, Outlook)>) -> (Option<R>, Option<u64>) {
    let Some((made, Outlook { deadline_ns, .. })) = visited else {
        return (None, None);
    };
    (Some(made), (deadline_ns != NEVER_NS).then_some(deadline_ns))
}

/// A request is in a batch: it pends no longer, and under preserve-ordering it has its turn.
fn leave_queue(live: &mut Live) {
    live.place = None;
    if let Some(turn) = &live.shared().turn {
        turn.reserve();
    }
}

/// Answers requests whose timeout has passed.
fn reject(expired: &mut Vec<Live>, departures: &mut Departures) {
    if expired.is_empty() {
        return;
    }
    for live in expired.drain(..) {
        refuse(
            live,
            Failure::Rejected,
            Error::unavailable("Request timeout expired"),
            departures,
        );
    }
    departures.flush();
}

/// Answers requests that were cancelled while their model's batching strategy looked at them, of which whoever cancelled them has been told
/// that they execute.
fn cancel(cancelled: &mut Vec<Live>, departures: &mut Departures) {
    if cancelled.is_empty() {
        return;
    }
    for live in cancelled.drain(..) {
        let error = Error::new(Code::Cancelled, "");
        refuse(live, Failure::Canceled, error, departures);
    }
    departures.flush();
}

/// Answers a request that was not executed, and counts it.
pub(crate) fn refuse(live: Live, reason: Failure, error: Error, departures: &mut Departures) {
    let origin = Arc::clone(live.ticket());
    if !live.is_filler {
        let duration_ns = monotonic_ns().saturating_sub(live.stamps.request_start_ns);
        origin
            .shared()
            .model
            .statistics
            .report_failure(reason, duration_ns);
    }
    // Its memory and its places are free before the client can send another.
    drop(live);
    departures.push(origin.shared(), Some(Err(error)), true);
}

/// Takes a queued request back for its owner: the client left or its deadline passed. Some: nobody else will answer it; it is counted
/// as cancelled and its payload is gone. None: it is executing or answered; the executor sees the wish as `is_cancelled`.
pub fn withdraw(ticket: &Ticket) -> Option<Error> {
    if give_notice(ticket) {
        return None;
    }
    let Some(live) = conch_channel::Claim::claim(ticket, Fate::Cancel, None) else {
        // An ensemble's steps may still wait.
        if let Some(run) = ticket.shared().run.get().and_then(Weak::upgrade) {
            run.cancel();
        }
        return None;
    };
    let duration_ns = monotonic_ns().saturating_sub(live.stamps.request_start_ns);
    ticket
        .shared()
        .model
        .statistics
        .report_failure(Failure::Canceled, duration_ns);
    drop(live);
    if let Some(usage) = &ticket.shared().usage {
        // The queue still holds the ticket.
        usage.release();
    }
    Some(Error::new(Code::Cancelled, ""))
}

/// Tells the scheduler of a request's sequence that the request is cancelled; false if it has no sequence, and whoever cancels it answers it.
pub(crate) fn give_notice(ticket: &Ticket) -> bool {
    let origin = ticket.shared();
    if origin.member.is_none() {
        return false;
    }
    ticket.request_cancel();
    if ticket.is_queued()
        && let Some(queue) = origin.model.queue.get()
    {
        queue.report_cancel(Arc::clone(ticket));
    }
    true
}

/// Room for the cores that a model begins with and for those that come later, in whole words of the idle set: a bell has 24 bytes, so a
/// model pays at most 1.5 KB for cores that never come.
fn core_count_max(core_count: usize) -> usize {
    core_count.max(1).next_multiple_of(64)
}

/// How many requests wait per priority level, where the queue policy bounds them.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    /// Count and bound, by level (0 without levels); empty if no level is bounded.
    levels: Box<[(AtomicU32, u32)]>,
}

/// More levels than any configuration uses; each has a counter if the policy bounds it.
const BOUNDED_LEVELS_MAX: u64 = 65_536;

impl Bounds {
    pub(crate) fn new(config: &conch_config::Model) -> Bounds {
        let settings = match &config.scheduling {
            Scheduling::Dynamic(settings) => settings,
            Scheduling::Sequence(settings) if settings.queue_size_max != 0 => {
                let levels = [(AtomicU32::new(0), settings.queue_size_max)];
                return Bounds {
                    levels: levels.into(),
                };
            }
            _ => return Bounds::default(),
        };
        let DynamicBatching {
            default_policy,
            priority_policies,
            priority_levels,
            ..
        } = settings;
        let is_bounded = |policy: &QueuePolicy| policy.queue_size_max != 0;
        if !is_bounded(default_policy)
            && !priority_policies
                .iter()
                .any(|(_, policy)| is_bounded(policy))
        {
            return Bounds::default();
        }
        let levels = (0..=(*priority_levels).min(BOUNDED_LEVELS_MAX))
            .map(|level| {
                (
                    AtomicU32::new(0),
                    policy_of(priority_policies, *default_policy, level).queue_size_max,
                )
            })
            .collect();
        Bounds { levels }
    }

    /// Counts a request in; false if its level is full.
    pub(crate) fn try_enter(&self, level: u64) -> bool {
        let Some((count, max)) = self.at(level) else {
            return true;
        };
        if *max == 0 {
            return true;
        }
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < *max).then_some(count + 1)
            })
            .is_ok()
    }

    fn leave(&self, level: u64) {
        if let Some((count, max)) = self.at(level)
            && *max != 0
        {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn at(&self, level: u64) -> Option<&(AtomicU32, u32)> {
        self.levels.get(usize::try_from(level).ok()?)
    }
}

/// A request's place among those that wait: in the pending gauge and under its level's bound. Freed on drop, which is when the
/// request joins a batch or whoever claimed it drops it.
pub struct Place {
    model: Arc<ModelVersion>,
    level: u64,
}

impl Place {
    /// A place for request `id` at `level`.
    ///
    /// # Errors
    /// UNAVAILABLE if the level is full. Not counted as a failure, as upstream counts none that was never queued.
    pub(crate) fn enter(model: &Arc<ModelVersion>, id: &str, level: u64) -> Result<Place, Error> {
        if !model.bounds.try_enter(level) {
            return Err(crate::admit::full(id));
        }
        model.statistics.add_pending();
        Ok(Place {
            model: Arc::clone(model),
            level,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.model.statistics.remove_pending(1);
        self.model.bounds.leave(self.level);
    }
}

impl ModelVersion {
    /// Puts an admitted request into the queue, where an idle core finds it, or answers it from the response cache: its completion may be
    /// called before this returns. Does not block.
    ///
    /// # Errors
    /// UNAVAILABLE once the model is stopping, or when the queue is full: the request is gone, and its completion is not called. Only
    /// the first is counted, as rejected.
    pub fn submit(&self, ticket: Ticket) -> Result<(), Error> {
        let member = self.cache.get();
        let submitted = match member.filter(|_| ticket.shared().deposit.is_some()) {
            Some(member) => member.submit(self, ticket),
            None => self.enqueue(ticket),
        };
        submitted.map_err(|Refusal { error, live }| {
            if let Some(mut live) = live {
                live.hold.defuse();
            }
            error
        })
    }

    /// Whether the queue takes no more requests.
    pub(crate) fn is_closed(&self) -> bool {
        match self.queue.get() {
            Some(queue) => queue.is_stopping(),
            None => self.ensemble.get().is_none_or(|own| own.is_closed()),
        }
    }

    /// Puts a request into the queue that has its place there.
    pub(crate) fn enqueue(&self, ticket: Ticket) -> Result<(), Refusal> {
        let rejection_ns = match &self.config.scheduling {
            Scheduling::Dynamic(settings) => rejection_ns(settings, &ticket.shared().facts),
            // If it has to wait for a slot.
            Scheduling::Sequence(_) => match ticket.shared().facts {
                Facts { timeout_us: 0, .. } => NEVER_NS,
                Facts {
                    queued_ns,
                    timeout_us,
                    ..
                } => queued_ns.saturating_add(timeout_us.saturating_mul(1_000)),
            },
            _ => NEVER_NS,
        };
        let member = ticket.shared().member.as_ref();
        let started = member
            .filter(|member| member.is_start)
            .map(|member| member.key.clone());
        let refused = match self.queue.get() {
            Some(queue) if started.is_some() && queue.is_stopping() => ticket,
            Some(queue) => match self.submit_to(queue, ticket, started) {
                Ok(()) => {
                    // Every core may be executing for longer than that.
                    if rejection_ns != NEVER_NS {
                        queue.entrust(rejection_ns);
                    }
                    return Ok(());
                }
                Err(Refused::Closed(ticket)) => ticket,
                Err(Refused::Linked(_)) => {
                    return Err(Refusal {
                        error: Error::internal("the request is queued already"),
                        live: None,
                    });
                }
            },
            None => match self.ensemble.get() {
                Some(ensemble) => return ensemble.begin(ticket),
                None => ticket,
            },
        };
        Err(stopping(&refused))
    }

    /// Puts a request into the queue that starts the sequence `started`, or none.
    fn submit_to(
        &self,
        queue: &Arc<Queue>,
        ticket: Ticket,
        started: Option<Key>,
    ) -> Result<(), Refused<Ticket>> {
        let Some(key) = started else {
            return queue.submit(ticket);
        };
        // It may go on in a version that this one took the place of.
        self.elders.end(&key);
        queue.submit(ticket)?;
        // Pairs with the fence of a hand-over: that has seen the request, or we see the ledger.
        fence(Ordering::SeqCst);
        if let Some(ledger) = queue.ledger.get() {
            ledger.note(key);
        }
        Ok(())
    }
}

/// Refuses a request because its model takes no more, and counts it.
pub(crate) fn stopping(refused: &Ticket) -> Refusal {
    const WORDS: &str =
        "Server is stopping, scheduler for model has stopped accepting new inference requests";
    let origin = refused.shared();
    let error = match origin.member {
        // The sequence batcher names no request.
        Some(_) => Error::unavailable(WORDS),
        None => Error::unavailable(format!("{}{WORDS}", crate::admit::Prefix(&origin.id))),
    };
    let live = refused.claim(Fate::Cancel, None);
    if let Some(live) = &live {
        let duration_ns = monotonic_ns().saturating_sub(live.stamps.request_start_ns);
        refused
            .shared()
            .model
            .statistics
            .report_failure(Failure::Rejected, duration_ns);
    }
    Refusal { error, live }
}

/// What the queue did not take. The request is there unless somebody else has claimed it.
pub(crate) struct Refusal {
    pub(crate) error: Error,
    pub(crate) live: Option<Live>,
}
