//! The workers (cores) of one model, which share its inbox and its scheduler.
//!
//! The scheduler is a passive value under a [`TryLock`]. An idle worker locks it, lets it accept
//! the requests of the inbox and form one batch, unlocks, looks again, and executes its batch
//! outside the lock. No thread exists only to batch, and a request reaches the thread that executes
//! it in one hop.
//!
//! No wake-up is lost between the last look of the lock's holder and its unlock, nor between a
//! worker's last look and its sleep:
//! - a producer pushes, fences, and unparks one idle worker if there is one;
//! - a worker inserts itself into the idle set, fences, looks once more, and only then parks;
//! - the holder publishes the poll state (ready work, next deadline), unlocks, fences, looks again,
//!   and unparks one idle worker if any work is left or another thread failed to lock meanwhile.
//!
//! Of each pair of fences one comes second, and its thread sees the other's writes. At most one
//! idle worker watches the scheduler's deadline: the one whose deadline is in `armed_ns` (another
//! with an earlier deadline may replace it). A worker that takes a batch while no idle worker
//! watches the deadline unparks one, which then watches; if none is idle it tells the caller, whose
//! timer thread watches.
//!
//! Work may be for one worker alone (the slots of its instances hold what the work needs): the
//! scheduler then [notifies](WorkerPool::notify_locked) that worker. The mark stands until the
//! worker locks the scheduler, so the worker finds it after an execution, and whoever unlocks
//! unparks the marked workers that are idle.
//!
//! Workers come and go while others serve. A new one looks first of all. A dismissed one takes no
//! more batches; before it returns it removes itself from the idle set, fences, and unparks an idle
//! worker, which takes over an unpark and a deadline meant for it.

mod worker;

use crate::mpsc_queue::{Drained, Link, MpscQueue, Refused};
use crate::parker::{Clock, IdleSet, NEVER_NS, Spin};
use crate::primitives::{AtomicBool, AtomicU64, Ordering, fence};
use crate::try_lock::{TryLock, TryLockGuard};
use worker::{PollNeed, WorkerState};

pub use worker::Worker;

/// What the scheduler needs next, as of when it was last driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollState {
    /// Another batch could be formed now.
    pub is_ready: bool,
    /// When to drive it again even without arrivals; [`NEVER_NS`] if only arrivals matter.
    pub deadline_ns: u64,
    /// It holds no request.
    pub is_empty: bool,
}

impl PollState {
    /// The state of a scheduler that waits for no time: ready unless it is empty.
    pub fn without_deadline(is_empty: bool) -> PollState {
        PollState {
            is_ready: !is_empty,
            deadline_ns: NEVER_NS,
            is_empty,
        }
    }
}

/// The inbox of a model's workers, their scheduler `S`, and their idle set. `LOOKS_AGAIN` and
/// `DISMISSAL_UNPARKS` are off in one test each, to show that the second look and the last unpark
/// matter.
pub struct WorkerPool<
    L: Link,
    S,
    const LOOKS_AGAIN: bool = true,
    const DISMISSAL_UNPARKS: bool = true,
> {
    inbox: MpscQueue<L>,
    lock: TryLock<S>,
    idle: IdleSet,
    /// Notified workers, as bits; empty where the scheduler never notifies a worker by number.
    notified: Box<[AtomicU64]>,
    is_ready: AtomicBool,
    deadline_ns: AtomicU64,
    armed_ns: AtomicU64,
    is_closing: AtomicBool,
    /// Dismissed workers, as bits.
    dismissed: Box<[AtomicU64]>,
}

/// A batch for the calling worker.
#[derive(Debug, PartialEq, Eq)]
pub struct NextBatch<B> {
    pub batch: B,
    /// The scheduler's deadline, if no idle worker watches it while this batch executes.
    pub unwatched_deadline_ns: Option<u64>,
}

/// What became of a drive from outside the workers.
#[derive(Debug, PartialEq, Eq)]
pub struct PollOutcome<R> {
    pub result: R,
    pub poll_state: PollState,
    /// There is work left, maybe for later, or another thread looked meanwhile.
    pub is_left: bool,
}

/// How a wait with a limit ended.
#[derive(Debug, PartialEq, Eq)]
pub enum LimitedWait<B> {
    Batch(NextBatch<B>),
    /// The limit is reached. Until its next call the worker is as one that executes: nobody wakes
    /// it.
    TimedOut,
    /// Closed and drained, or this worker was dismissed.
    Over,
}

/// What a worker is to do that waits together with workers of other pools.
#[derive(Debug, PartialEq, Eq)]
pub enum SharedWait<B> {
    Batch(NextBatch<B>),
    /// It is in the idle set. Its thread may sleep until the given time, and then calls
    /// [`WorkerPool::end_wait`].
    Listed(u64),
    /// Closed and drained, or this worker was dismissed.
    Over,
}

/// What a worker found.
enum LookOutcome<B> {
    Batch(NextBatch<B>),
    Over,
    /// Nothing to do for now.
    Nothing {
        /// Another thread holds the lock.
        is_held_elsewhere: bool,
    },
}

/// What a worker has after it drove the scheduler.
enum DriveOutcome<B> {
    Batch {
        next: NextBatch<B>,
        /// Another batch could be formed now.
        is_ready: bool,
    },
    /// Nothing, and it drives the scheduler again if told so.
    Nothing(PollNeed),
    /// The pool is closed and drained.
    Drained,
}

impl<L: Link, S, const LOOKS_AGAIN: bool, const DISMISSAL_UNPARKS: bool>
    WorkerPool<L, S, LOOKS_AGAIN, DISMISSAL_UNPARKS>
{
    /// Room for `core_count` workers, whether they have started or not.
    pub fn new(scheduler: S, core_count: usize) -> Self {
        WorkerPool {
            inbox: MpscQueue::default(),
            lock: TryLock::new(scheduler),
            idle: IdleSet::new(core_count),
            notified: Box::default(),
            is_ready: AtomicBool::new(false),
            deadline_ns: AtomicU64::new(NEVER_NS),
            armed_ns: AtomicU64::new(NEVER_NS),
            is_closing: AtomicBool::new(false),
            dismissed: (0..core_count.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    /// A pool whose scheduler may notify workers by number.
    pub fn with_addressed_workers(scheduler: S, core_count: usize) -> Self {
        let notified = (0..core_count.div_ceil(64)).map(|_| AtomicU64::new(0));
        WorkerPool {
            notified: notified.collect(),
            ..WorkerPool::new(scheduler, core_count)
        }
    }

    /// Marks worker `core`. The scheduler calls this under the lock; the worker is woken after the
    /// unlock.
    pub fn notify_locked(&self, core: usize) {
        let (word, bit) = (&self.notified[core / 64], 1 << (core % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            // Release pairs with the Acquire of `clear_notified`: the worker finds the work that it
            // is notified of.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Marks worker `core` and wakes it if it sleeps. Called outside the lock.
    pub fn notify(&self, core: usize) {
        // Not `notify_locked`: the worker may be about to clear a bit that was set before.
        self.notified[core / 64].fetch_or(1 << (core % 64), Ordering::Release);
        // Pairs with the fence of a worker about to park.
        fence(Ordering::SeqCst);
        self.idle.unpark(core);
    }

    /// Adds `item` and wakes an idle worker if there is one. Never blocks; at most one system call.
    ///
    /// # Errors
    /// The item, once the pool is closed, or if it lies in a queue already.
    pub fn submit(&self, item: L) -> Result<(), Refused<L>> {
        if self.is_closing.load(Ordering::Relaxed) {
            return Err(Refused::Closed(item));
        }
        // If the queue was not empty, the thread that pushed first unparks, and the worker that
        // takes unparks others while work is left.
        if self.inbox.push(item)? {
            // Pairs with the fence of a worker about to park.
            fence(Ordering::SeqCst);
            self.idle.unpark_one();
        }
        Ok(())
    }

    /// Adds `item` and wakes nobody. True if the queue was empty: the caller then has it looked at
    /// soon, by [`WorkerPool::try_drive`] or [`WorkerPool::wake_one`]. Until then, no worker may
    /// know of it, nor of what is submitted after it. False: whoever pushed first sees to it.
    ///
    /// # Errors
    /// As [`WorkerPool::submit`].
    pub fn push(&self, item: L) -> Result<bool, Refused<L>> {
        if self.is_closing.load(Ordering::Relaxed) {
            return Err(Refused::Closed(item));
        }
        self.inbox.push(item)
    }

    /// Wakes an idle worker, if there is one, to look at what was pushed.
    pub fn wake_one(&self) {
        // Pairs with the fence of a worker about to park.
        fence(Ordering::SeqCst);
        self.idle.unpark_one();
    }

    /// Whether worker `core` is idle.
    pub fn is_idle(&self, core: usize) -> bool {
        self.idle.has(core)
    }

    /// Whether no worker is idle: all execute, or are about to look.
    pub fn is_busy(&self) -> bool {
        !self.idle.has_any()
    }

    /// Whether there is something to do, as far as this thread can see: what it has submitted,
    /// unless another thread has seen to it.
    pub fn has_work(&self) -> bool {
        !self.inbox.is_empty() || self.is_ready.load(Ordering::Relaxed)
    }

    /// Refuses further items. The workers return when the scheduler is empty.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.idle.unpark_all();
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Dismisses worker `core`: it executes its batch, and its next [`WorkerPool::next`] returns
    /// none. Another must remain.
    pub fn dismiss(&self, core: usize) {
        // Release, and the unpark: the woken worker sees the bit.
        self.dismissed[core / 64].fetch_or(1 << (core % 64), Ordering::Release);
        fence(Ordering::SeqCst);
        self.idle.parker(core).unpark();
    }

    /// The side of worker `core`. Called once per worker, on its thread; see also
    /// [`WorkerPool::move_here`].
    pub fn worker(&self, core: usize, spin: Spin) -> Worker {
        self.idle.parker(core).attach();
        Worker::new(core, spin)
    }

    /// Waits for work and forms a batch by `drive`, which lets the scheduler accept the arrivals at
    /// a given time (ns) and returns the poll state. None: closed and drained, or this worker was
    /// dismissed.
    ///
    /// `drive` runs under the lock: it must not block, and never calls back into the pool.
    pub fn next<B>(
        &self,
        worker: &mut Worker,
        clock: &impl Clock,
        drive: impl FnMut(&mut S, Drained<L>, u64) -> (Option<B>, PollState),
    ) -> Option<NextBatch<B>> {
        match self.next_until(worker, clock, NEVER_NS, drive) {
            LimitedWait::Batch(next) => Some(next),
            LimitedWait::TimedOut | LimitedWait::Over => None,
        }
    }

    /// As [`WorkerPool::next`], but waits until `limit_ns` at most: for a worker that has something
    /// else to look after. A limit in the past looks once and does not wait.
    pub fn next_until<B>(
        &self,
        worker: &mut Worker,
        clock: &impl Clock,
        limit_ns: u64,
        mut drive: impl FnMut(&mut S, Drained<L>, u64) -> (Option<B>, PollState),
    ) -> LimitedWait<B> {
        worker.state.next();
        loop {
            let is_held_elsewhere = match self.look(worker, clock, &mut drive) {
                LookOutcome::Batch(next) => return LimitedWait::Batch(next),
                LookOutcome::Over => return LimitedWait::Over,
                LookOutcome::Nothing { is_held_elsewhere } => is_held_elsewhere,
            };
            if matches!(worker.state, WorkerState::Awake(_)) {
                if limit_ns != NEVER_NS && clock.now_ns() >= limit_ns {
                    worker.state.leave();
                    return LimitedWait::TimedOut;
                }
                self.list(worker);
                if LOOKS_AGAIN {
                    continue;
                }
            }
            self.sleep(worker, clock, limit_ns, is_held_elsewhere);
            worker.state.wake();
        }
    }

    /// As [`WorkerPool::next`], but in place of a sleep the worker stays in the idle set: for a
    /// thread that has workers of several pools, and sleeps once all of them are
    /// ([`park_current_until`](crate::park_current_until), until
    /// [`WorkerPool::is_unparked`] says so of one).
    pub fn next_or_list<B>(
        &self,
        worker: &mut Worker,
        clock: &impl Clock,
        mut drive: impl FnMut(&mut S, Drained<L>, u64) -> (Option<B>, PollState),
    ) -> SharedWait<B> {
        worker.state.next();
        loop {
            let is_held_elsewhere = match self.look(worker, clock, &mut drive) {
                LookOutcome::Batch(next) => return SharedWait::Batch(next),
                LookOutcome::Over => return SharedWait::Over,
                LookOutcome::Nothing { is_held_elsewhere } => is_held_elsewhere,
            };
            if matches!(worker.state, WorkerState::Awake(_)) {
                self.list(worker);
                if LOOKS_AGAIN {
                    continue;
                }
            }
            return SharedWait::Listed(self.watch_unless(is_held_elsewhere));
        }
    }

    /// Whether somebody unparked worker `core` since its last wait.
    pub fn is_unparked(&self, core: usize) -> bool {
        self.idle.parker(core).is_unparked()
    }

    /// Ends the wait of a worker in the idle set whose [`SharedWait::Listed`] was `until_ns`.
    pub fn end_wait(&self, worker: &mut Worker, until_ns: u64) {
        self.unwatch(until_ns);
        // One that is not in the set any more was chosen by a waker: it looks.
        let is_chosen = !self.idle.remove(worker.core);
        let is_unparked = self.idle.parker(worker.core).consume_unpark();
        worker.state.leave_listed(is_chosen || is_unparked);
    }

    /// Forgets that worker `core` was unparked: for one that is not in the idle set, and whose
    /// thread sleeps all the same. What it was unparked for is found by its next look.
    pub fn clear_unpark(&self, core: usize) {
        self.idle.parker(core).consume_unpark();
    }

    /// Makes the calling thread that of `worker`, whose thread does not come back to it. Its next
    /// look finds what it was unparked for meanwhile.
    pub fn move_here(&self, worker: &Worker) {
        self.idle.parker(worker.core).attach();
    }

    /// Looks for a batch as long as the worker has a reason to.
    fn look<B>(
        &self,
        worker: &mut Worker,
        clock: &impl Clock,
        drive: &mut impl FnMut(&mut S, Drained<L>, u64) -> (Option<B>, PollState),
    ) -> LookOutcome<B> {
        let core = worker.core;
        loop {
            if self.is_dismissed(core) {
                self.retire(worker);
                return LookOutcome::Over;
            }
            if !self.has_reason(worker.state.poll_need(), core, clock) {
                return LookOutcome::Nothing {
                    is_held_elsewhere: false,
                };
            }
            let Some(scheduler) = self.lock.try_lock() else {
                return LookOutcome::Nothing {
                    is_held_elsewhere: true,
                };
            };
            if worker.state.lock() {
                self.unlist(core);
            }
            match self.drive_locked(core, scheduler, clock, drive) {
                DriveOutcome::Batch { next, is_ready } => {
                    worker.state.take_batch(is_ready);
                    return LookOutcome::Batch(next);
                }
                DriveOutcome::Drained => {
                    worker.state.end();
                    return LookOutcome::Over;
                }
                DriveOutcome::Nothing(need) => worker.state.stay(need),
            }
            if worker.state.poll_need() != PollNeed::Due {
                return LookOutcome::Nothing {
                    is_held_elsewhere: false,
                };
            }
        }
    }

    /// Puts the worker into the idle set.
    fn list(&self, worker: &mut Worker) {
        self.idle.insert(worker.core);
        worker.state.list();
        if LOOKS_AGAIN {
            // Pairs with the fences of `submit`, `close` and of an unlock.
            fence(Ordering::SeqCst);
        }
    }

    /// Whether worker `core` has to drive the scheduler.
    fn has_reason(&self, need: PollNeed, core: usize, clock: &impl Clock) -> bool {
        match need {
            PollNeed::Due => true,
            PollNeed::OnNews { has_seen_closing } => {
                self.is_notified(core) || self.has_news(clock, has_seen_closing)
            }
        }
    }

    /// Drives the scheduler for worker `core`, unlocks, looks again, and has others unparked for
    /// the work that is left.
    fn drive_locked<B>(
        &self,
        core: usize,
        mut scheduler: TryLockGuard<'_, S>,
        clock: &impl Clock,
        drive: &mut impl FnMut(&mut S, Drained<L>, u64) -> (Option<B>, PollState),
    ) -> DriveOutcome<B> {
        self.clear_notified(core);
        let is_closing = self.is_closing.load(Ordering::Acquire);
        let arrivals = if is_closing {
            self.inbox.close()
        } else {
            self.inbox.take_all()
        };
        let (batch, poll_state) = drive(&mut scheduler, arrivals, clock.now_ns());
        self.publish(poll_state);
        let is_wanted = scheduler.release();
        // Pairs with the fences of `submit` and of a worker about to park.
        fence(Ordering::SeqCst);
        if LOOKS_AGAIN {
            self.unpark_notified();
        }
        let is_left = LOOKS_AGAIN && (is_wanted || poll_state.is_ready || !self.inbox.is_empty());
        if let Some(batch) = batch {
            return DriveOutcome::Batch {
                next: NextBatch {
                    batch,
                    unwatched_deadline_ns: self.pass_on(is_left, is_closing, poll_state),
                },
                is_ready: poll_state.is_ready,
            };
        }
        if is_closing && poll_state.is_empty {
            // A worker that failed to lock, or waits for an obsolete deadline, must see the end
            // too.
            self.idle.unpark_all();
            return DriveOutcome::Drained;
        }
        DriveOutcome::Nothing(if is_left {
            PollNeed::Due
        } else {
            PollNeed::OnNews {
                has_seen_closing: is_closing,
            }
        })
    }

    /// Whether a worker that looked now would find work.
    pub fn is_due(&self, clock: &impl Clock) -> bool {
        self.has_news(clock, true)
    }

    /// Drives the scheduler from outside [`WorkerPool::next`]. None: another thread holds the lock
    /// and will look again.
    pub fn try_drive<R>(
        &self,
        clock: &impl Clock,
        drive: impl FnOnce(&mut S, Drained<L>, u64) -> (R, PollState),
    ) -> Option<(R, PollState)> {
        let visit = self.try_drive_unwoken(clock, drive)?;
        if visit.is_left {
            self.idle.unpark_one();
        }
        Some((visit.result, visit.poll_state))
    }

    /// As [`WorkerPool::try_drive`], but wakes nobody for what is left: the caller drives again
    /// soon, or calls [`WorkerPool::wake_one`]. The latter at once if there is no
    /// [work](WorkerPool::has_work), as a deadline has to be watched.
    pub fn try_drive_unwoken<R>(
        &self,
        clock: &impl Clock,
        drive: impl FnOnce(&mut S, Drained<L>, u64) -> (R, PollState),
    ) -> Option<PollOutcome<R>> {
        let mut scheduler = self.lock.try_lock()?;
        let arrivals = self.inbox.take_all();
        let (result, poll_state) = drive(&mut scheduler, arrivals, clock.now_ns());
        self.publish(poll_state);
        let is_wanted = scheduler.release();
        fence(Ordering::SeqCst);
        self.unpark_notified();
        Some(PollOutcome {
            result,
            poll_state,
            is_left: is_wanted
                || poll_state.is_ready
                || !self.inbox.is_empty()
                || poll_state.deadline_ns != NEVER_NS,
        })
    }

    fn has_news(&self, clock: &impl Clock, has_seen_closing: bool) -> bool {
        if self.has_work() {
            return true;
        }
        let deadline_ns = self.deadline_ns.load(Ordering::Relaxed);
        (deadline_ns != NEVER_NS && deadline_ns <= clock.now_ns())
            || (!has_seen_closing && self.is_closing.load(Ordering::Relaxed))
    }

    fn is_notified(&self, core: usize) -> bool {
        let word = self.notified.get(core / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (core % 64)) != 0)
    }

    /// Worker `core` holds the lock and will handle what it was notified of.
    fn clear_notified(&self, core: usize) {
        if self.is_notified(core)
            && let Some(word) = self.notified.get(core / 64)
        {
            word.fetch_and(!(1 << (core % 64)), Ordering::Acquire);
        }
    }

    /// Unparks the notified workers that are idle. The caller has unlocked and then fenced
    /// (SeqCst).
    fn unpark_notified(&self) {
        for (index, word) in self.notified.iter().enumerate() {
            let mut notified = word.load(Ordering::Relaxed);
            while notified != 0 {
                self.idle
                    .unpark(index * 64 + notified.trailing_zeros() as usize);
                notified &= notified - 1;
            }
        }
    }

    fn publish(&self, poll_state: PollState) {
        // Relaxed: the fence after the unlock orders them for each thread that looks after its own
        // fence.
        self.is_ready.store(poll_state.is_ready, Ordering::Relaxed);
        self.deadline_ns
            .store(poll_state.deadline_ns, Ordering::Relaxed);
    }

    /// Before a worker executes: an idle one takes over the work that is left. Returns the deadline
    /// if no worker watches it.
    fn pass_on(&self, is_left: bool, is_closing: bool, poll_state: PollState) -> Option<u64> {
        if is_closing && poll_state.is_empty {
            self.idle.unpark_all();
            return None;
        }
        let is_unwatched = poll_state.deadline_ns < self.armed_ns.load(Ordering::Relaxed);
        let is_handed = (is_left || is_unwatched) && self.idle.unpark_one();
        (is_unwatched && !is_handed).then_some(poll_state.deadline_ns)
    }

    fn is_dismissed(&self, core: usize) -> bool {
        self.dismissed[core / 64].load(Ordering::Acquire) & (1 << (core % 64)) != 0
    }

    /// Hands over the unparks and the deadline of a dismissed worker.
    fn retire(&self, worker: &mut Worker) {
        self.idle.remove(worker.core);
        // Pairs with the fences of `submit` and of a worker about to park: an unpark of this worker
        // is passed on, or its cause is seen.
        fence(Ordering::SeqCst);
        let is_handed = DISMISSAL_UNPARKS && self.idle.unpark_one();
        let deadline_ns = self.deadline_ns.load(Ordering::Relaxed);
        worker.state.end();
        worker.unwatched_deadline_ns =
            (!is_handed && deadline_ns != NEVER_NS).then_some(deadline_ns);
    }

    /// Removes `core` from the idle set without a sleep.
    fn unlist(&self, core: usize) {
        // If an unpark came first, the look that follows handles it; a token left in the parker
        // costs one empty look later.
        self.idle.remove(core);
    }

    /// Parks as an idle worker, until an unpark, a deadline that no other worker watches, or the
    /// worker's own limit.
    fn sleep(
        &self,
        worker: &mut Worker,
        clock: &impl Clock,
        limit_ns: u64,
        is_held_elsewhere: bool,
    ) {
        let parker = self.idle.parker(worker.core);
        let watched_ns = self.watch_unless(is_held_elsewhere);
        let until_ns = watched_ns.min(limit_ns);
        let is_unparked = parker.park_until(until_ns, clock, &mut worker.spin);
        self.unwatch(watched_ns);
        if !is_unparked {
            self.unlist(worker.core);
        }
    }

    /// [`WorkerPool::watch`], unless another thread holds the lock: that saw the contended mark and
    /// will unpark an idle worker when it unlocks; only it knows the next deadline.
    fn watch_unless(&self, is_held_elsewhere: bool) -> u64 {
        match is_held_elsewhere {
            true => NEVER_NS,
            false => self.watch(),
        }
    }

    /// Ends a watch.
    fn unwatch(&self, watched_ns: u64) {
        if watched_ns != NEVER_NS {
            // Failure: another worker watches an earlier deadline now.
            let _ = self.armed_ns.compare_exchange(
                watched_ns,
                NEVER_NS,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// Starts to watch the scheduler's deadline, unless another worker watches an equal or earlier
    /// one.
    fn watch(&self) -> u64 {
        let deadline_ns = self.deadline_ns.load(Ordering::Relaxed);
        let mut armed_ns = self.armed_ns.load(Ordering::Relaxed);
        while deadline_ns < armed_ns {
            match self.armed_ns.compare_exchange_weak(
                armed_ns,
                deadline_ns,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return deadline_ns,
                Err(seen) => armed_ns = seen,
            }
        }
        NEVER_NS
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
