//! How the cores of one model share its inbox and its scheduler.
//!
//! The scheduler is a passive value under a [`Baton`]. An idle core takes the baton, lets the scheduler accept what lies in the inbox and
//! form one batch, releases, looks again, and executes its batch outside. No thread exists only to batch, and a request reaches
//! the core that executes it in one hop.
//!
//! Nothing may be forgotten between the holder's last look and its release, nor between a core's last look and its sleep:
//! - a producer pushes, fences, and rings one idle core if there is one;
//! - a core enters itself into the idle set, fences, looks once more, and only then sleeps;
//! - a holder publishes what is left (ready work, next deadline), releases, fences, looks again, and rings one idle core if
//!   anything is left or someone wanted the baton meanwhile.
//!
//! Of each pair of fences one comes second, and its side sees the other's news. At most one idle core needs to watch the
//! scheduler's deadline: the one whose deadline stands in `armed_ns` (it may be overtaken by one with an earlier deadline).
//! A core that leaves with a batch while the deadline is unwatched rings an idle core, which then watches; with none idle it tells
//! the caller, whose timekeeper has it.
//!
//! Work may be for one core alone (its instances hold what the work needs): the scheduler then [*calls*](Relay::mark) that core. A call
//! stands until the called core takes the baton, so it finds it when it comes back from an execution, and who releases the
//! baton rings those called that are idle.
//!
//! Cores come and go while others serve. One that comes looks first of all. One that is dismissed takes no more batches; before it goes it
//! takes itself out of the idle set, fences, and rings an idle core: a ring that it has swallowed, and the watch that it kept, go there.

use crate::baton::Baton;
use crate::bell::{Clock, IdleSet, NEVER_NS, Spin};
use crate::pile::{Chain, Link, Pile, Refused};
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// What the scheduler left behind when it was last driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Another batch could be formed now.
    pub is_ready: bool,
    /// When it wants to be driven again though nothing arrives; [`NEVER_NS`] if only arrivals matter.
    pub deadline_ns: u64,
    /// It holds nothing.
    pub is_empty: bool,
}

/// The inbox of a model's cores, their scheduler `S`, and their idle set. `LOOKS_AGAIN` and
/// `DISMISSAL_RINGS` are off in one test each, to show that the second look and the last ring matter.
pub struct Relay<L: Link, S, const LOOKS_AGAIN: bool = true, const DISMISSAL_RINGS: bool = true> {
    inbox: Pile<L>,
    baton: Baton<S>,
    idle: IdleSet,
    /// Cores that are called, as bits; empty where the scheduler calls none by name.
    called: Box<[AtomicU64]>,
    is_ready: AtomicBool,
    deadline_ns: AtomicU64,
    armed_ns: AtomicU64,
    is_closing: AtomicBool,
    /// Cores that shall leave, as bits.
    dismissed: Box<[AtomicU64]>,
}

/// One core's side of a [`Relay`]; it stays on the core's thread.
#[derive(Debug)]
pub struct Runner {
    core: usize,
    spin: Spin,
    /// Whether a look at the scheduler is owed, whatever the relay's state says.
    owes_look: bool,
    /// Left behind by a core that was dismissed.
    unwatched_deadline_ns: Option<u64>,
}

impl Runner {
    /// The scheduler's deadline when this core was dismissed, if no idle core watches it.
    pub fn unwatched_deadline_ns(&self) -> Option<u64> {
        self.unwatched_deadline_ns
    }
}

/// A batch for the calling core.
#[derive(Debug, PartialEq, Eq)]
pub struct Turn<B> {
    pub batch: B,
    /// The scheduler's deadline, if no idle core watches it while this batch executes.
    pub unwatched_deadline_ns: Option<u64>,
}

impl Runner {
    /// The core's number.
    pub fn core(&self) -> usize {
        self.core
    }
}

impl<L: Link, S, const LOOKS_AGAIN: bool, const DISMISSAL_RINGS: bool>
    Relay<L, S, LOOKS_AGAIN, DISMISSAL_RINGS>
{
    /// Room for `core_count` cores, whether they are there yet or not.
    pub fn new(scheduler: S, core_count: usize) -> Self {
        Relay {
            inbox: Pile::default(),
            baton: Baton::new(scheduler),
            idle: IdleSet::new(core_count),
            called: Box::default(),
            is_ready: AtomicBool::new(false),
            deadline_ns: AtomicU64::new(NEVER_NS),
            armed_ns: AtomicU64::new(NEVER_NS),
            is_closing: AtomicBool::new(false),
            dismissed: (0..core_count.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    /// A relay whose scheduler may call cores by name.
    pub fn calling(scheduler: S, core_count: usize) -> Self {
        let called = (0..core_count.div_ceil(64)).map(|_| AtomicU64::new(0));
        Relay {
            called: called.collect(),
            ..Relay::new(scheduler, core_count)
        }
    }

    /// Calls core `core`; for the scheduler, under the baton: the core is woken once that is released.
    pub fn mark(&self, core: usize) {
        let (word, bit) = (&self.called[core / 64], 1 << (core % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            // Release pairs with the Acquire of `answer`: the core finds what it is called for.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Calls core `core`, from outside the baton, and wakes it if it sleeps.
    pub fn call(&self, core: usize) {
        // Not `mark`: the core may be about to clear a bit that was set before.
        self.called[core / 64].fetch_or(1 << (core % 64), Ordering::Release);
        // Pairs with the fence of a core about to sleep.
        fence(Ordering::SeqCst);
        self.idle.ring(core);
    }

    /// Adds `item` and wakes an idle core if there is one. Never blocks; at most one system call.
    ///
    /// # Errors
    /// The item, once the relay is closed, or if it lies in a queue already.
    pub fn submit(&self, item: L) -> Result<(), Refused<L>> {
        if self.is_closing.load(Ordering::Relaxed) {
            return Err(Refused::Closed(item));
        }
        // Into a pile that was not empty: whoever pushed first rings, and whoever takes rings on while work is left.
        if self.inbox.push(item)? {
            // Pairs with the fence of a core about to sleep.
            fence(Ordering::SeqCst);
            self.idle.ring_one();
        }
        Ok(())
    }

    /// Whether no core waits for work: all execute, or are about to look.
    pub fn is_busy(&self) -> bool {
        !self.idle.has_any()
    }

    /// Refuses further items; the cores end when the scheduler is empty.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.idle.ring_all();
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Lets core number `core` go: it executes what it has, and its next [`Relay::next`] returns none. Another must stay.
    pub fn dismiss(&self, core: usize) {
        // Release, and the ring: whoever it wakes sees the mark.
        self.dismissed[core / 64].fetch_or(1 << (core % 64), Ordering::Release);
        fence(Ordering::SeqCst);
        self.idle.bell(core).ring();
    }

    /// The side of core number `core`, on whose thread this is called; once per core.
    pub fn runner(&self, core: usize, spin: Spin) -> Runner {
        self.idle.bell(core).attach();
        Runner {
            core,
            spin,
            owes_look: true,
            unwatched_deadline_ns: None,
        }
    }

    /// Waits for work and forms a batch by `drive`, which lets the scheduler accept the arrivals at a given time (ns) and says what
    /// is left. None: closed and drained, or this core was dismissed.
    ///
    /// `drive` runs under the baton: it must not block, and never calls back into the relay.
    pub fn next<B>(
        &self,
        runner: &mut Runner,
        clock: &impl Clock,
        mut drive: impl FnMut(&mut S, Chain<L>, u64) -> (Option<B>, Outlook),
    ) -> Option<Turn<B>> {
        let core = runner.core;
        let mut has_seen_closing = false;
        let mut is_listed = false;
        loop {
            let mut is_held_elsewhere = false;
            if self.is_dismissed(core) {
                self.depart(runner);
                return None;
            }
            if runner.owes_look || self.is_called(core) || self.has_news(clock, has_seen_closing) {
                if let Some(mut scheduler) = self.baton.try_take() {
                    if std::mem::take(&mut is_listed) {
                        self.leave(core);
                    }
                    runner.owes_look = false;
                    self.answer(core);
                    let is_closing = self.is_closing.load(Ordering::Acquire);
                    has_seen_closing = is_closing;
                    let arrivals = if is_closing {
                        self.inbox.close()
                    } else {
                        self.inbox.take_all()
                    };
                    let (batch, outlook) = drive(&mut scheduler, arrivals, clock.now_ns());
                    self.publish(outlook);
                    let is_wanted = scheduler.release();
                    // Pairs with the fences of `submit` and of a core about to sleep.
                    fence(Ordering::SeqCst);
                    if LOOKS_AGAIN {
                        self.ring_called();
                    }
                    let is_left =
                        LOOKS_AGAIN && (is_wanted || outlook.is_ready || !self.inbox.is_empty());
                    if let Some(batch) = batch {
                        // Asked again on the next call: the scheduler may have changed by then without this core.
                        runner.owes_look = outlook.is_ready;
                        let unwatched_deadline_ns = self.hand_on(is_left, is_closing, outlook);
                        return Some(Turn {
                            batch,
                            unwatched_deadline_ns,
                        });
                    }
                    if is_closing && outlook.is_empty {
                        // Whoever wanted the baton, or waits for a deadline that is no more, shall see the end too.
                        self.idle.ring_all();
                        return None;
                    }
                    if is_left {
                        runner.owes_look = true;
                        continue;
                    }
                } else {
                    is_held_elsewhere = true;
                }
            }
            if !is_listed {
                self.idle.insert(core);
                is_listed = true;
                if LOOKS_AGAIN {
                    // Pairs with the fences of `submit`, `close` and of a release.
                    fence(Ordering::SeqCst);
                    continue;
                }
            }
            self.sleep(runner, clock, is_held_elsewhere);
            is_listed = false;
            runner.owes_look = true;
        }
    }

    /// Whether a core that looked now would find something to do.
    pub fn is_due(&self, clock: &impl Clock) -> bool {
        self.has_news(clock, true)
    }

    /// Drives the scheduler from outside [`Relay::next`]. None: a core holds the baton and will look itself.
    pub fn visit<R>(
        &self,
        clock: &impl Clock,
        drive: impl FnOnce(&mut S, Chain<L>, u64) -> (R, Outlook),
    ) -> Option<(R, Outlook)> {
        let mut scheduler = self.baton.try_take()?;
        let arrivals = self.inbox.take_all();
        let (result, outlook) = drive(&mut scheduler, arrivals, clock.now_ns());
        self.publish(outlook);
        let is_wanted = scheduler.release();
        fence(Ordering::SeqCst);
        self.ring_called();
        if is_wanted
            || outlook.is_ready
            || !self.inbox.is_empty()
            || outlook.deadline_ns != NEVER_NS
        {
            self.idle.ring_one();
        }
        Some((result, outlook))
    }

    fn has_news(&self, clock: &impl Clock, has_seen_closing: bool) -> bool {
        if !self.inbox.is_empty() || self.is_ready.load(Ordering::Relaxed) {
            return true;
        }
        let deadline_ns = self.deadline_ns.load(Ordering::Relaxed);
        (deadline_ns != NEVER_NS && deadline_ns <= clock.now_ns())
            || (!has_seen_closing && self.is_closing.load(Ordering::Relaxed))
    }

    fn is_called(&self, core: usize) -> bool {
        let word = self.called.get(core / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (core % 64)) != 0)
    }

    /// Core `core` has the baton and will see to what it was called for.
    fn answer(&self, core: usize) {
        if self.is_called(core)
            && let Some(word) = self.called.get(core / 64)
        {
            word.fetch_and(!(1 << (core % 64)), Ordering::Acquire);
        }
    }

    /// Wakes the called cores that are idle. The caller has fenced (SeqCst) after releasing the baton.
    fn ring_called(&self) {
        for (index, word) in self.called.iter().enumerate() {
            let mut called = word.load(Ordering::Relaxed);
            while called != 0 {
                self.idle
                    .ring(index * 64 + called.trailing_zeros() as usize);
                called &= called - 1;
            }
        }
    }

    fn publish(&self, outlook: Outlook) {
        // Relaxed: the fence after the release orders them for whoever looks after its own fence.
        self.is_ready.store(outlook.is_ready, Ordering::Relaxed);
        self.deadline_ns
            .store(outlook.deadline_ns, Ordering::Relaxed);
    }

    /// Before a core executes: what it leaves goes to an idle sibling. Returns the deadline if nobody watches it.
    fn hand_on(&self, is_left: bool, is_closing: bool, outlook: Outlook) -> Option<u64> {
        if is_closing && outlook.is_empty {
            self.idle.ring_all();
            return None;
        }
        let is_unwatched = outlook.deadline_ns < self.armed_ns.load(Ordering::Relaxed);
        let is_handed = (is_left || is_unwatched) && self.idle.ring_one();
        (is_unwatched && !is_handed).then_some(outlook.deadline_ns)
    }

    fn is_dismissed(&self, core: usize) -> bool {
        self.dismissed[core / 64].load(Ordering::Acquire) & (1 << (core % 64)) != 0
    }

    /// What a dismissed core owes the others.
    fn depart(&self, runner: &mut Runner) {
        self.idle.remove(runner.core);
        // Pairs with the fences of `submit` and of a core about to sleep: a ring that came here goes on, or its cause is seen.
        fence(Ordering::SeqCst);
        let is_handed = DISMISSAL_RINGS && self.idle.ring_one();
        let deadline_ns = self.deadline_ns.load(Ordering::Relaxed);
        runner.unwatched_deadline_ns =
            (!is_handed && deadline_ns != NEVER_NS).then_some(deadline_ns);
    }

    /// Takes `core` out of the idle set without having slept.
    fn leave(&self, core: usize) {
        // If a ringer was faster, its ring is answered by the look that follows; left on the bell it costs one empty look later.
        self.idle.remove(core);
    }

    /// Sleeps as a listed core, until rung or until a deadline that nobody else watches.
    fn sleep(&self, runner: &mut Runner, clock: &impl Clock, is_held_elsewhere: bool) {
        let bell = self.idle.bell(runner.core);
        // The holder has been told and will ring an idle core when it is done: it, not we, knows the next deadline.
        let watched_ns = if is_held_elsewhere {
            NEVER_NS
        } else {
            self.watch()
        };
        let is_rung = bell.wait(watched_ns, clock, &mut runner.spin);
        if watched_ns != NEVER_NS {
            // Failure: another took the duty over with an earlier deadline.
            let _ = self.armed_ns.compare_exchange(
                watched_ns,
                NEVER_NS,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
        if !is_rung {
            self.leave(runner.core);
        }
    }

    /// Takes on the watch over the scheduler's deadline, unless someone watches an equal or earlier one.
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
