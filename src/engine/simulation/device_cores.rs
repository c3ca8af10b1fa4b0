//! Models that share the core of a device: threads that give them turns, calls that block for a
//! while or for long, and the timer thread that looks after them. What decides is the server's own
//! ([`CoreSharing`], [`RoundRobin`], [`CoreActivity`], [`CallTimes`], `InFlightBatches`).

use std::collections::{BTreeMap, BTreeSet};

use conch_scheduler::testing::Random;

use crate::execution::streams::sharing::{
    BLOCKED_NS_MAX, CALL_NS_MAX, CallTimes, CoreActivity, CoreId, CoreSharing, LONG_CALL_NS,
    MemberId, RoundRobin,
};
use crate::simulation::agenda::Agenda;
use crate::simulation::device_models::SimulatedModel;
use crate::simulation::trace::SeedTrace;
use crate::simulation::{EVENT_COUNT_MIN, RuleResult};

pub(super) struct DeviceSimulation {
    random: Random,
    now_ns: u64,
    agenda: Agenda<DeviceEvent>,
    sharing: CoreSharing,
    threads: BTreeMap<CoreId, SimulatedThread>,
    models: Vec<SimulatedModel>,
    /// Cores that a model kept because it blocked them.
    left_behind: BTreeSet<CoreId>,
    /// Numbers of turns.
    stamp: u64,
    pub(super) event_count: u64,
    /// How often models were moved.
    pub(super) move_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DeviceEvent {
    /// A thread goes on in its round, or begins one.
    GoOn(CoreId),
    /// A turn ends that took so long; with a batch to enqueue.
    EndTurn {
        core: CoreId,
        model: usize,
        duration_ns: u64,
        has_batch: bool,
    },
    /// A thread wakes from its sleep of that number.
    Wake(CoreId, u64),
    /// The timer thread's look at a count of turns that was so.
    Watch(CoreId, u64),
}

#[derive(Default)]
struct SimulatedThread {
    members: Vec<usize>,
    round: Option<RoundRobin>,
    is_asleep: bool,
    sleep_count: u64,
    is_notified: bool,
    turn: u64,
    current: MemberId,
    is_watched: bool,
}

const STEP_COUNT: usize = 150;
const MODELS_MAX: usize = 5;
const EVENT_COUNT_MAX: u64 = 400_000;
const MS: u64 = 1_000_000;

impl DeviceSimulation {
    pub(super) fn new(seed: u64) -> DeviceSimulation {
        DeviceSimulation {
            random: Random(seed),
            now_ns: MS,
            agenda: Agenda::new(),
            sharing: CoreSharing::default(),
            threads: BTreeMap::new(),
            models: Vec::new(),
            left_behind: BTreeSet::new(),
            stamp: 0,
            event_count: 0,
            move_count: 0,
        }
    }

    /// Lives through the seed.
    pub(super) fn live(&mut self, trace: &mut SeedTrace) -> RuleResult {
        let mut step_count = 0;
        while step_count < STEP_COUNT || self.event_count < EVENT_COUNT_MIN {
            step_count += 1;
            let live: Vec<usize> = (0..self.models.len())
                .filter(|model| !self.models[*model].is_leaving)
                .collect();
            match self.random.below(24) {
                0 if live.len() < MODELS_MAX => self.load(trace),
                1 if live.len() > 1 => {
                    let model = self.random.one_of(&live);
                    self.close(model, trace);
                }
                2..16 if !live.is_empty() => {
                    let model = self.random.one_of(&live);
                    for _ in 0..1 + self.random.below(4) {
                        self.arrive(model, trace);
                    }
                }
                _ => {
                    let pause_ns = self
                        .random
                        .one_of(&[10_000, 300_000, MS, 30 * MS, 400 * MS]);
                    let pause_ns = self.random.below(pause_ns);
                    self.pass_until(self.now_ns + pause_ns, trace)?;
                }
            }
            self.check()?;
        }
        trace.tell(self.now_ns, || "nothing comes any more".into());
        for model in 0..self.models.len() {
            self.close(model, trace);
        }
        while let Some(at_ns) = self.agenda.next_ns() {
            self.pass_until(at_ns, trace)?;
        }
        self.check_end()
    }

    /// A model more.
    fn load(&mut self, trace: &mut SeedTrace) {
        self.event_count += 1;
        let model = self.models.len();
        // For a while, for longer than others wait, or nearly for ever.
        let block_ms_max = match self.random.chance(1, 4) {
            true => self.random.one_of(&[60, 200, 500, 9_000]),
            false => 0,
        };
        let core = match self.sharing.open_core() {
            Some(core) => core,
            None => {
                let core = self.sharing.new_core();
                self.start(core);
                core
            }
        };
        self.sharing.join(core, model as MemberId);
        trace.tell(self.now_ns, || {
            format!("model {model} comes to core {core}; its calls block for {block_ms_max} ms")
        });
        // Or it launches many kernels for each batch.
        let launch_us = match self.random.chance(1, 4) {
            true => self.random.one_of(&[60, 400, 2_000, 9_000]),
            false => 0,
        };
        let state = SimulatedModel::new(core, block_ms_max, launch_us);
        self.models.push(state);
        self.notify(core);
        self.begin_watch(core);
    }

    /// A model takes no more requests, and ends once it has answered those that it has.
    fn close(&mut self, model: usize, trace: &mut SeedTrace) {
        if std::mem::replace(&mut self.models[model].is_leaving, true) {
            return;
        }
        trace.tell(self.now_ns, || format!("model {model} is unloaded"));
        self.wake(self.models[model].core);
    }

    fn arrive(&mut self, model: usize, trace: &mut SeedTrace) {
        let state = &mut self.models[model];
        let number = state.submitted_count;
        state.submitted_count += 1;
        state.waiting.push_back(number);
        trace.tell(self.now_ns, || format!("{number} arrives at model {model}"));
        if state.takes_batch() {
            self.wake(self.models[model].core);
        }
    }

    fn start(&mut self, core: CoreId) {
        let thread = SimulatedThread {
            is_notified: true,
            ..SimulatedThread::default()
        };
        self.threads.insert(core, thread);
        let at_ns = self.now_ns + 10_000 + self.random.below(100_000);
        self.agenda.plan(at_ns, DeviceEvent::GoOn(core));
    }

    fn notify(&mut self, core: CoreId) {
        if let Some(thread) = self.threads.get_mut(&core) {
            thread.is_notified = true;
        }
        self.wake(core);
    }

    /// A thread that sleeps wakes after a moment.
    fn wake(&mut self, core: CoreId) {
        if let Some(thread) = self.threads.get(&core)
            && thread.is_asleep
        {
            let event = DeviceEvent::Wake(core, thread.sleep_count);
            let at_ns = self.now_ns + self.random.below(4) * 500;
            self.agenda.plan(at_ns, event);
        }
    }

    fn begin_watch(&mut self, core: CoreId) {
        if let Some(thread) = self.threads.get_mut(&core)
            && !std::mem::replace(&mut thread.is_watched, true)
        {
            let event = DeviceEvent::Watch(core, thread.turn);
            self.agenda.plan(self.now_ns + BLOCKED_NS_MAX, event);
        }
    }

    fn pass_until(&mut self, end_ns: u64, trace: &mut SeedTrace) -> RuleResult {
        while let Some((at_ns, event)) = self.agenda.take_until(end_ns) {
            self.now_ns = self.now_ns.max(at_ns);
            self.event_count += 1;
            if self.event_count > EVENT_COUNT_MAX {
                return Err("it does not come to rest".into());
            }
            match event {
                DeviceEvent::GoOn(core) => self.go_on(core, trace)?,
                DeviceEvent::EndTurn {
                    core,
                    model,
                    duration_ns,
                    has_batch,
                } => self.end_turn(core, model, duration_ns, has_batch, trace)?,
                DeviceEvent::Wake(core, number) => {
                    if let Some(thread) = self.threads.get_mut(&core)
                        && thread.is_asleep
                        && thread.sleep_count == number
                    {
                        thread.is_asleep = false;
                        self.go_on(core, trace)?;
                    }
                }
                DeviceEvent::Watch(core, seen) => self.watch(core, seen, trace),
            }
            self.check()?;
        }
        self.now_ns = self.now_ns.max(end_ns);
        Ok(())
    }

    /// A thread gives the next turn of its round; after the last it begins another one, or sleeps.
    fn go_on(&mut self, core: CoreId, trace: &mut SeedTrace) -> RuleResult {
        let Some(thread) = self.threads.get_mut(&core) else {
            return Err(format!("core {core} has ended and goes on"));
        };
        let mut round = match thread.round.take() {
            Some(round) => round,
            None => {
                if std::mem::take(&mut thread.is_notified) {
                    let before = std::mem::take(&mut thread.members);
                    let members = self.sharing.members(core).iter();
                    thread.members = members.map(|id| *id as usize).collect();
                    for model in thread
                        .members
                        .iter()
                        .filter(|model| !before.contains(model))
                    {
                        self.models[*model].core_stamp = self.stamp;
                    }
                    if thread.members.is_empty() {
                        trace.tell(self.now_ns, || format!("core {core} ends"));
                        self.sharing.end(core);
                        self.threads.remove(&core);
                        return Ok(());
                    }
                }
                thread.turn += 2;
                if thread.members.len() > 1 {
                    self.begin_watch(core);
                }
                RoundRobin::default()
            }
        };
        let members = self.threads[&core].members.clone();
        while let Some(model) = round.next(&members) {
            let state = &self.models[*model];
            if state.core == core && state.holder.is_none() && !state.has_ended {
                self.begin_turn(core, *model, trace)?;
                if let Some(thread) = self.threads.get_mut(&core) {
                    thread.round = Some(round);
                }
                return Ok(());
            }
        }
        if round.is_busy() || self.threads[&core].is_notified {
            self.agenda.plan(self.now_ns + 100, DeviceEvent::GoOn(core));
            return Ok(());
        }
        self.sleep(core, &members);
        Ok(())
    }

    /// Until the next look; not at all if somebody is due: each queue is looked at once more.
    fn sleep(&mut self, core: CoreId, members: &[usize]) {
        let now_ns = self.now_ns;
        let mut until_ns = u64::MAX;
        for model in members {
            let state = &mut self.models[*model];
            if state.core != core || state.has_ended {
                continue;
            }
            if state.holder.is_some() {
                until_ns = until_ns.min(now_ns + 5 * MS);
            } else if state.takes_batch() || state.is_over() {
                until_ns = now_ns;
            } else if !state.in_flight.is_empty() {
                until_ns = until_ns.min(state.in_flight.next_look_ns(now_ns));
            }
        }
        let Some(thread) = self.threads.get_mut(&core) else {
            return;
        };
        thread.is_asleep = true;
        thread.sleep_count += 1;
        let event = DeviceEvent::Wake(core, thread.sleep_count);
        if until_ns != u64::MAX {
            self.agenda.plan(until_ns.max(now_ns + 1_000), event);
        }
    }

    fn begin_turn(&mut self, core: CoreId, model: usize, trace: &mut SeedTrace) -> RuleResult {
        let now_ns = self.now_ns;
        let own = &self.models[model];
        let members = &self.threads[&core].members;
        let mut beside_count = 0;
        for other in members.iter().filter(|other| **other != model) {
            let state = &self.models[*other];
            if state.core != core || state.has_ended || state.holder.is_some() {
                continue;
            }
            beside_count += 1;
            if state.core_stamp < own.turn_stamp && state.turn_stamp < own.turn_stamp {
                return Err(format!("model {model} has two turns before model {other}"));
            }
        }
        self.stamp += 1;
        let state = &mut self.models[model];
        state.turn_stamp = self.stamp;
        state.due_ns = None;
        state.holder = Some(core);
        state.poll(now_ns)?;
        let has_batch = state.takes_batch();
        let mut duration_ns = 500 + self.random.below(4_000);
        if has_batch {
            duration_ns += state.launch_us * 1_000;
        }
        if has_batch && state.block_ms_max > 0 && self.random.chance(1, 2) {
            duration_ns += self.random.below(state.block_ms_max * MS);
        }
        if duration_ns > CALL_NS_MAX {
            trace.tell(now_ns, || {
                format!(
                    "model {model} blocks core {core} for {} ms",
                    duration_ns / MS
                )
            });
            if beside_count > 0 {
                // What comes after the watch took the others away is its own.
                let duration_ns = duration_ns.min(2 * BLOCKED_NS_MAX);
                state.blocked_others.push((now_ns, duration_ns));
            }
        }
        if (LONG_CALL_NS..=CALL_NS_MAX).contains(&duration_ns) && beside_count > 0 {
            state.note_occupied(now_ns, duration_ns);
        }
        if let Some(thread) = self.threads.get_mut(&core) {
            thread.current = model as MemberId;
            thread.turn += 1;
        }
        let event = DeviceEvent::EndTurn {
            core,
            model,
            duration_ns,
            has_batch,
        };
        self.agenda.plan(now_ns + duration_ns, event);
        Ok(())
    }

    fn end_turn(
        &mut self,
        core: CoreId,
        model: usize,
        duration_ns: u64,
        has_batch: bool,
        trace: &mut SeedTrace,
    ) -> RuleResult {
        let now_ns = self.now_ns;
        let state = &mut self.models[model];
        if state.holder.take() != Some(core) {
            return Err(format!("model {model} is in two turns"));
        }
        if has_batch && let Some(number) = state.waiting.pop_front() {
            let free_ns = state.on_device.back().map_or(now_ns, |(end_ns, _)| *end_ns);
            let end_ns = free_ns.max(now_ns) + 1 + self.random.below(2 * MS);
            state.on_device.push_back((end_ns, number));
            state.in_flight.begin(now_ns, now_ns);
        }
        state.call_times.note(now_ns, duration_ns);
        let is_set_apart = state.call_times.apart_reason().is_some();
        if is_set_apart {
            state.call_times = CallTimes::default();
        }
        let is_over = state.is_over();
        state.has_ended |= is_over;
        if let Some(thread) = self.threads.get_mut(&core) {
            thread.turn += 1;
            if let (true, Some(round)) = (has_batch, &mut thread.round) {
                round.note_busy();
            }
        }
        if is_over {
            trace.tell(now_ns, || format!("model {model} ends on core {core}"));
            self.sharing.leave(model as MemberId);
            self.notify(core);
        } else if is_set_apart {
            self.split(core, model as MemberId, CoreSharing::set_apart, trace);
        }
        self.go_on(core, trace)
    }

    fn watch(&mut self, core: CoreId, seen: u64, trace: &mut SeedTrace) {
        let Some(thread) = self.threads.get_mut(&core) else {
            return;
        };
        thread.is_watched = false;
        let (turn, current) = (thread.turn, thread.current);
        match CoreActivity::between(seen, turn) {
            CoreActivity::Active => {}
            CoreActivity::Dormant => return,
            CoreActivity::Blocked => {
                self.left_behind.insert(core);
                self.split(core, current, CoreSharing::leave_behind, trace);
            }
        }
        self.begin_watch(core);
    }

    fn split(
        &mut self,
        core: CoreId,
        blocking: MemberId,
        change: fn(&mut CoreSharing, CoreId, MemberId, CoreId) -> bool,
        trace: &mut SeedTrace,
    ) {
        let successor = self.sharing.new_core();
        if !self.sharing.has_others(core, blocking) {
            change(&mut self.sharing, core, blocking, successor);
            return;
        }
        self.start(successor);
        if change(&mut self.sharing, core, blocking, successor) {
            self.move_count += 1;
            let moved = self.sharing.members(successor);
            trace.tell(self.now_ns, || {
                format!("{moved:?} move from core {core} to {successor}")
            });
            for id in moved {
                let state = &mut self.models[*id as usize];
                state.core = successor;
            }
        }
        self.notify(core);
    }

    /// After every event.
    fn check(&mut self) -> RuleResult {
        if let Some(open) = self.sharing.open_core()
            && self.left_behind.contains(&open)
        {
            return Err(format!("core {open} is blocked, and takes those that come"));
        }
        let now_ns = self.now_ns;
        let blocks = |model: &&SimulatedModel| model.block_ms_max > 0 && !model.has_ended;
        let blocking_count = self.models.iter().filter(blocks).count() as u64;
        // Two looks for each that blocks in one round, and for one that has just ended.
        let late_ns_max = (2 + blocking_count) * 2 * BLOCKED_NS_MAX;
        for (number, model) in self.models.iter_mut().enumerate() {
            let id = number as MemberId;
            let drives = |core: &&CoreId| self.sharing.members(**core).contains(&id);
            let cores: Vec<_> = self.threads.keys().filter(drives).collect();
            let expected: &[&CoreId] = if model.has_ended { &[] } else { &[&model.core] };
            if cores != expected {
                return Err(format!(
                    "cores {cores:?} drive model {number}, not {expected:?}"
                ));
            }
            let held = model.check(now_ns, late_ns_max);
            held.map_err(|breach| format!("model {number} {breach}"))?;
        }
        Ok(())
    }

    fn check_end(&self) -> RuleResult {
        for (number, model) in self.models.iter().enumerate() {
            if !model.has_ended || model.answered_count != model.submitted_count {
                return Err(format!("model {number} never ends"));
            }
        }
        if !self.threads.is_empty() || !self.sharing.is_empty() {
            return Err("a core without models does not end".into());
        }
        Ok(())
    }
}
