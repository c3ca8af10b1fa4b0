//! The sequence batcher: requests of one sequence go to one instance, one after the other, each in
//! its slot.
//!
//! ```text
//!                START, slot free                         its last request is given out
//!   (unknown) ────────────────────► slot ── END, idle, ──► closed ──────────────────────► slot free, or the
//!       │                            ▲     cancelled      (takes no more)                 oldest of the backlog
//!       │ START, no slot free        │ promoted
//!       └─────────────────────────► backlog ──── timeout, cancelled ────► answered
//! ```
//!
//! A slot belongs to an instance (its row there is the slot's number) and each instance to one
//! core. What a core may execute is thus decided when a sequence starts; this scheduler calls that
//! core by name. Cores may come later, and leave once their sequences have ended. As upstream's
//! `SequenceBatchScheduler`, but that a sequence is not idle while something of it waits or
//! executes, and that a cancelled request ends its sequence at once, not when its turn comes.

mod direct;
mod free_slots;
mod idle;
mod member;
mod oldest;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Range;

use conch_config::{SequenceBatching, SequenceStrategy};
use conch_sync::{ClaimReason, NEVER_NS, PollState};

use crate::delay::SchedulerDelay;
use crate::entry::Entry;
use crate::output::{Dismissal, SchedulerOutput};
use direct::DirectStrategy;
use free_slots::FreeSlots;
use idle::IdleSequences;
use member::{SequenceNumber, SlotId};
use oldest::OldestStrategy;
use table::SequenceTable;

pub use member::{SequenceContext, SequenceKey};

/// The slots of all instances, who has them, and who waits for one.
#[derive(Debug)]
pub struct SequenceBatcher<T: Entry> {
    strategy: SlotStrategy<T>,
    table: SequenceTable<T>,
    free_slots: FreeSlots,
    idle: IdleSequences,
    instances: Vec<InstanceSlots<T>>,
    /// The instances of each core; none of one that has not come yet.
    cores: Vec<Range<usize>>,
    idle_ns: u64,
    backlog_max: usize,
    is_iterative: bool,
    /// Requests that were taken in and not given out.
    waiting_count: usize,
    /// Requests that were given out and are to come back.
    out_count: usize,
    /// Cores that have something to do since they were last asked about.
    called: Vec<usize>,
    /// What must wait before anything is executed, until it has.
    hold: Option<SchedulerDelay>,
}

#[derive(Debug)]
enum SlotStrategy<T: Entry> {
    Direct(DirectStrategy),
    Oldest(OldestStrategy<T>),
}

/// What one instance has of sequences.
#[derive(Debug)]
struct InstanceSlots<T> {
    core: usize,
    /// As many as were ever used.
    slots: Vec<SequenceSlot<T>>,
    /// Its core should ask for a batch.
    is_called: bool,
    /// When to call it although nothing arrives.
    deadline_ns: u64,
    /// It was given a batch and has not asked again.
    is_busy: bool,
}

#[derive(Clone, Debug)]
struct SequenceSlot<T> {
    run: Option<SequenceNumber>,
    /// A request that was taken out of it has not come back, or is executed for all that is known.
    is_out: bool,
    /// That request, while it waits in its instance's batcher.
    candidate: Option<T>,
}

impl<T> InstanceSlots<T> {
    fn of(core: usize) -> InstanceSlots<T> {
        InstanceSlots {
            core,
            slots: Vec::new(),
            is_called: false,
            deadline_ns: NEVER_NS,
            is_busy: false,
        }
    }
}

impl<T> Default for SequenceSlot<T> {
    fn default() -> SequenceSlot<T> {
        SequenceSlot {
            run: None,
            is_out: false,
            candidate: None,
        }
    }
}

impl<T: Entry> SequenceBatcher<T> {
    /// `instance_counts` are the instances of each core.
    pub fn new(
        settings: &SequenceBatching,
        batch_size_max: u32,
        instance_counts: &[usize],
    ) -> SequenceBatcher<T> {
        let mut instances = Vec::new();
        let mut cores = Vec::with_capacity(instance_counts.len());
        for (core, count) in instance_counts.iter().enumerate() {
            let start = instances.len();
            instances.extend((0..*count).map(|_| InstanceSlots::of(core)));
            cores.push(start..instances.len());
        }
        let strategy = match &settings.strategy {
            SequenceStrategy::Direct {
                delay_us,
                utilization_min,
            } => SlotStrategy::Direct(DirectStrategy::new(
                *delay_us,
                *utilization_min,
                batch_size_max,
            )),
            SequenceStrategy::Oldest(batching) => SlotStrategy::Oldest(OldestStrategy::new(
                batching,
                batch_size_max,
                instances.len(),
            )),
        };
        SequenceBatcher {
            strategy,
            table: SequenceTable::default(),
            free_slots: FreeSlots::new(instances.len(), settings.slot_count),
            idle: IdleSequences::default(),
            instances,
            cores,
            idle_ns: settings.idle_us.saturating_mul(1_000),
            backlog_max: settings
                .backlog_max
                .and_then(|max| max.try_into().ok())
                .unwrap_or(usize::MAX),
            is_iterative: settings.is_iterative,
            waiting_count: 0,
            out_count: 0,
            called: Vec::new(),
            hold: None,
        }
    }

    /// See [`SchedulerDelay`].
    pub fn hold(&mut self, hold: SchedulerDelay) {
        match &mut self.strategy {
            SlotStrategy::Direct(_) => self.hold = Some(hold),
            SlotStrategy::Oldest(oldest) => oldest.hold(hold.request_count),
        }
    }

    /// Whether nothing may be executed yet.
    fn is_held(&mut self) -> bool {
        let Some(hold) = &self.hold else {
            return false;
        };
        let backlog_count = self.table.backlog_request_count();
        if self.waiting_count - backlog_count < hold.request_count
            || backlog_count < hold.backlog_count
        {
            return true;
        }
        self.hold = None;
        for instance in &mut self.instances {
            instance.is_called = true;
            self.called.push(instance.core);
        }
        false
    }

    /// Whether requests that were given out are to be brought back by [`SequenceBatcher::release`]
    /// or [`SequenceBatcher::reschedule`].
    pub fn awaits(&self) -> bool {
        self.is_iterative || matches!(self.strategy, SlotStrategy::Oldest(_))
    }

    /// Sequences that take requests.
    pub fn open_count(&self) -> usize {
        self.table.open_count()
    }

    /// Whether the sequence of this run, which is under way, does not wait for a slot.
    #[doc(hidden)]
    pub fn has_slot(&self, run: u64) -> bool {
        self.table.get(run).is_none_or(|run| run.slot.is_some())
    }

    /// The names of the sequences that take requests. From now on each output tells which of them
    /// do not any more.
    pub fn hand_over(&mut self) -> Vec<SequenceKey> {
        self.table.note_ends()
    }

    /// Ends a sequence, if there is one of this name: what it has waiting is executed, and nothing
    /// joins it.
    pub fn end(&mut self, key: &SequenceKey, now_ns: u64) {
        let Some(id) = self.table.find(key) else {
            return;
        };
        self.table.close(id);
        if let Some(slot) = self.table.get(id).and_then(|run| run.slot) {
            self.settle(slot, now_ns);
        }
    }

    /// Adds an arrival; or, for one that has arrived before, learns that it is cancelled.
    pub fn accept(&mut self, entry: T, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        let Some(member) = entry.member() else {
            debug_assert!(false, "admission makes every request part of a sequence");
            return;
        };
        if member.run().is_some() {
            self.cancel(&entry, now_ns, output);
            return;
        }
        if !entry.is_waiting() {
            // It was refused as it arrived, when somebody was about to have it cancelled.
            return;
        }
        let id = match self.table.find(&member.key) {
            Some(id) => {
                if member.is_start {
                    output.conflicts.push(member.key.clone());
                }
                id
            }
            None if !member.is_start => {
                output.refuse(&entry, ClaimReason::Expire, Dismissal::NotStarted);
                return;
            }
            None => {
                let slot = self.free_slots.take();
                if slot.is_none() && self.table.backlog_count() >= self.backlog_max {
                    output.refuse(&entry, ClaimReason::Expire, Dismissal::BacklogFull);
                    return;
                }
                let id = self.table.begin(&member.key, slot, now_ns);
                if let Some(slot) = slot {
                    self.occupy(slot, id, now_ns);
                }
                id
            }
        };
        member.join(id);
        let Some(run) = self.table.get_mut(id) else {
            return;
        };
        let facts = entry.facts();
        run.queue.push_back((entry.clone(), facts.queued_ns));
        run.active_ns = now_ns;
        let slot = run.slot;
        self.waiting_count += 1;
        if slot.is_none() && facts.timeout_us != 0 {
            let timeout_ns = facts.timeout_us.saturating_mul(1_000);
            let expires_ns = facts.queued_ns.saturating_add(timeout_ns);
            self.table.bound(id, expires_ns);
        }
        if member.is_end {
            self.table.close(id);
        }
        if entry.is_cancelled() {
            self.cancel(&entry, now_ns, output);
        } else if let Some(slot) = slot {
            self.settle(slot, now_ns);
        }
    }

    /// A request that was given out has come back, and is done with. It may come twice: where
    /// somebody wanted it cancelled just then.
    pub fn release(&mut self, entry: &T, now_ns: u64) {
        let Some(member) = entry.member().filter(|member| member.take_back()) else {
            return;
        };
        let slot = member.slot();
        self.come_back(slot, now_ns);
        if self.is_iterative
            && let Some(id) = member.run()
        {
            // Who does not ask to be run again ends its sequence.
            self.table.close(id);
        }
        self.settle(slot, now_ns);
    }

    /// A request that was given out has come back to be run again, after what its sequence has
    /// waiting.
    pub fn reschedule(&mut self, entry: T, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        let Some(member) = entry.member().filter(|member| member.take_back()) else {
            return;
        };
        let slot = member.slot();
        self.come_back(slot, now_ns);
        let id = member.run();
        match id.and_then(|id| self.table.get_mut(id)) {
            Some(run) => {
                run.queue.push_back((entry.clone(), now_ns));
                self.waiting_count += 1;
                if entry.is_cancelled() {
                    self.cancel(&entry, now_ns, output);
                }
            }
            None => output.refuse(&entry, ClaimReason::Expire, Dismissal::NotStarted),
        }
        self.settle(slot, now_ns);
    }

    /// Core `core` has come since, with one instance: what waits for a slot has some.
    fn join(&mut self, core: usize, now_ns: u64) {
        let instance = self.instances.len();
        self.instances.push(InstanceSlots::of(core));
        if self.cores.len() <= core {
            self.cores.resize(core + 1, 0..0);
        }
        self.cores[core] = instance..instance + 1;
        if let SlotStrategy::Oldest(oldest) = &mut self.strategy {
            oldest.add_instance();
        }
        self.free_slots.add_instance();
        while self.table.backlog_count() > 0
            && let Some(slot) = self.free_slots.take()
        {
            match self.table.promote(slot, now_ns) {
                Some(id) => {
                    self.occupy(slot, id, now_ns);
                    self.settle(slot, now_ns);
                }
                None => self.free_slots.give(slot),
            }
        }
    }

    /// Core `core` is to leave: no more sequences go to it. True once it has none and nothing of it
    /// is out.
    pub fn drain(&mut self, core: usize) -> bool {
        let instances = self.cores.get(core).cloned().unwrap_or(0..0);
        for instance in instances.clone() {
            self.free_slots.close_instance(instance);
        }
        self.instances[instances].iter().all(|instance| {
            let is_empty = |slot: &SequenceSlot<T>| slot.run.is_none() && !slot.is_out;
            !instance.is_busy && instance.slots.iter().all(is_empty)
        })
    }

    /// Ends the sequences of `core`: what they have waiting is executed. Returns how many there
    /// were.
    pub fn end_all(&mut self, core: usize, now_ns: u64) -> usize {
        let mut count = 0;
        for instance in self.cores.get(core).cloned().unwrap_or(0..0) {
            for row in 0..self.instances[instance].slots.len() {
                let Some(id) = self.instances[instance].slots[row].run else {
                    continue;
                };
                count += usize::from(self.table.get(id).is_some_and(|run| !run.is_ending));
                self.table.close(id);
                self.settle(
                    SlotId {
                        row: row as u32,
                        instance: instance as u32,
                    },
                    now_ns,
                );
            }
        }
        count
    }

    /// Forms a batch for `core`, if there is one at `now_ns`. Who asks for the first time has come,
    /// with one instance.
    pub fn form(
        &mut self,
        core: usize,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) -> PollState {
        if self.cores.get(core).is_none_or(Range::is_empty) {
            self.join(core, now_ns);
        }
        let instances = self.cores.get(core).cloned().unwrap_or(0..0);
        for instance in instances.clone() {
            if self.instances[instance].is_busy {
                self.rest(instance, now_ns);
            }
        }
        self.advance(now_ns, output);
        if self.hold.is_some() && self.is_held() {
            return self.poll_state(output);
        }
        for instance in instances.clone() {
            if !self.instances[instance].is_called {
                continue;
            }
            self.instances[instance].is_called = false;
            self.instances[instance].deadline_ns = NEVER_NS;
            match &self.strategy {
                SlotStrategy::Direct(_) => self.form_direct(instance, now_ns, output),
                SlotStrategy::Oldest(_) => self.form_oldest(instance, now_ns, output),
            }
            if !output.batch.is_empty() {
                self.instances[instance].is_busy = true;
                output.instance = instance - instances.start;
                self.waiting_count -= output.batch.len();
                if self.awaits() {
                    self.out_count += output.batch.len();
                }
                break;
            }
        }
        // Its calls end as it asks: what is left for it is for the next time.
        if instances
            .clone()
            .any(|instance| self.instances[instance].is_called)
        {
            self.called.push(core);
        }
        self.poll_state(output)
    }

    /// Ends what has timed out, without forming a batch: for the time while every instance
    /// executes.
    pub fn expire(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        self.advance(now_ns, output);
        self.poll_state(output)
    }

    fn poll_state(&mut self, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        output.called.append(&mut self.called);
        self.table.tell_ends(&mut output.ended);
        let instances = self.instances.iter().map(|instance| instance.deadline_ns);
        let deadline_ns = instances
            .chain([self.idle.next_ns(), self.table.next_timeout_ns()])
            .min();
        PollState {
            // Whoever has something to do is called.
            is_ready: false,
            deadline_ns: deadline_ns.unwrap_or(NEVER_NS),
            is_empty: self.waiting_count == 0 && self.out_count == 0,
        }
    }

    /// What is due by the clock.
    fn advance(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        for instance in 0..self.instances.len() {
            if self.instances[instance].deadline_ns <= now_ns {
                self.instances[instance].deadline_ns = NEVER_NS;
                self.call(instance);
            }
        }
        while let Some(id) = self.table.expired(now_ns) {
            if let Some(run) = self.table.remove(id) {
                self.refuse_all(run.queue, ClaimReason::Expire, Dismissal::TimedOut, output);
            }
        }
        while let Some(id) = self.idle.due(now_ns) {
            self.look_at(id, now_ns);
        }
    }

    /// Ends a sequence that is idle, or puts the question off.
    fn look_at(&mut self, id: SequenceNumber, now_ns: u64) {
        let Some(run) = self.table.get_mut(id) else {
            return;
        };
        run.look_ns = NEVER_NS;
        let Some(slot) = run.slot else { return };
        let instance = &self.instances[slot.instance()];
        if !run.queue.is_empty() || instance.slots[slot.row()].is_out {
            run.active_ns = now_ns;
        }
        let until_ns = run.active_ns.saturating_add(self.idle_ns);
        if until_ns > now_ns {
            run.look_ns = until_ns;
            self.idle.watch(id, until_ns);
        } else {
            self.table.close(id);
            self.settle(slot, now_ns);
        }
    }

    /// Somebody asked to cancel `entry`, which has arrived: it and all behind it in its sequence
    /// end, and with them the sequence.
    fn cancel(&mut self, entry: &T, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        let Some(member) = entry.member() else { return };
        if !entry.is_waiting() {
            // It executes, and its backend sees the wish; or it was answered. Who brought it back
            // may have found it on its way to here.
            if member.is_back() {
                self.release(entry, now_ns);
            }
            return;
        }
        let left = member.slot();
        let state = self.slot_mut(left);
        let is_candidate = |candidate: &T| candidate.is_same(entry);
        if let Some(state) = state
            && state.candidate.as_ref().is_some_and(is_candidate)
        {
            // Its instance's batcher finds it claimed.
            state.candidate = None;
            state.is_out = false;
            output.refuse(entry, ClaimReason::Cancel, Dismissal::Cancelled);
            self.waiting_count -= 1;
            if let Some(id) = member.run() {
                self.cut(id, 0, now_ns, output);
            }
            self.settle(left, now_ns);
            return;
        }
        let Some(id) = member.run() else { return };
        let queued = self.table.get(id).map(|run| {
            let is_own = |(queued, _): &(T, u64)| queued.is_same(entry);
            (run.queue.iter().position(is_own), run.slot)
        });
        match queued {
            Some((Some(position), Some(_))) => self.cut(id, position, now_ns, output),
            // Of a sequence that has not begun nothing is executed.
            Some((Some(_), None)) => self.cut(id, 0, now_ns, output),
            // It was given out, and cancelled while it came back to be run again: this is how it
            // comes back.
            Some((None, _)) | None => {
                output.refuse(entry, ClaimReason::Cancel, Dismissal::Cancelled);
                self.release(entry, now_ns);
            }
        }
    }

    /// Ends a sequence in front of its waiting request number `position`.
    fn cut(
        &mut self,
        id: SequenceNumber,
        position: usize,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) {
        let Some(run) = self.table.get_mut(id) else {
            return;
        };
        let slot = run.slot;
        let cut = run.queue.split_off(position);
        self.refuse_all(cut, ClaimReason::Cancel, Dismissal::Cancelled, output);
        match slot {
            Some(slot) => {
                self.table.close(id);
                self.settle(slot, now_ns);
            }
            None => drop(self.table.remove(id)),
        }
    }

    fn slot_mut(&mut self, slot: SlotId) -> Option<&mut SequenceSlot<T>> {
        self.instances
            .get_mut(slot.instance())
            .and_then(|instance| instance.slots.get_mut(slot.row()))
    }

    fn refuse_all(
        &mut self,
        queue: impl IntoIterator<Item = (T, u64)>,
        reason: ClaimReason,
        why: Dismissal,
        output: &mut SchedulerOutput<T::Owned>,
    ) {
        for (entry, _) in queue {
            self.waiting_count -= 1;
            output.refuse(&entry, reason, why);
        }
    }

    /// A sequence gets a slot.
    fn occupy(&mut self, slot: SlotId, id: SequenceNumber, now_ns: u64) {
        let slots = &mut self.instances[slot.instance()].slots;
        if slots.len() <= slot.row() {
            slots.resize(slot.row() + 1, SequenceSlot::default());
        }
        slots[slot.row()].run = Some(id);
        let look_ns = now_ns.saturating_add(self.idle_ns);
        if let Some(run) = self.table.get_mut(id) {
            run.look_ns = look_ns;
            self.idle.watch(id, look_ns);
        }
    }

    /// A request that was given out of `slot` has come back.
    fn come_back(&mut self, slot: SlotId, now_ns: u64) {
        self.out_count = self.out_count.saturating_sub(1);
        let Some(slot) = self.slot_mut(slot) else {
            return;
        };
        slot.is_out = false;
        let id = slot.run;
        if let Some(run) = id.and_then(|id| self.table.get_mut(id)) {
            run.active_ns = now_ns;
        }
    }

    /// An instance asks again: where requests are not brought back, what it was given has been
    /// executed.
    fn rest(&mut self, instance: usize, now_ns: u64) {
        self.instances[instance].is_busy = false;
        if self.awaits() {
            return;
        }
        for slot in &mut self.instances[instance].slots {
            if std::mem::take(&mut slot.is_out)
                && let Some(run) = slot.run.and_then(|id| self.table.get_mut(id))
            {
                run.active_ns = now_ns;
            }
        }
    }

    /// Whether what waits in `slot` waits for its request that was given out, which may be run
    /// again.
    fn is_held_back(&self, slot: &SequenceSlot<T>) -> bool {
        slot.is_out && self.is_iterative
    }

    /// After anything that happened to `slot`: frees it if its sequence is over, else sees to what
    /// waits in it.
    fn settle(&mut self, slot: SlotId, now_ns: u64) {
        loop {
            let state = &self.instances[slot.instance()].slots[slot.row()];
            let is_out = state.is_out;
            let is_held_back = self.is_held_back(state);
            let Some(run) = state.run.and_then(|id| self.table.get(id)) else {
                return;
            };
            if !run.queue.is_empty() {
                match &mut self.strategy {
                    SlotStrategy::Direct(_) if is_held_back => return,
                    SlotStrategy::Direct(_) => {
                        self.call(slot.instance());
                        return;
                    }
                    SlotStrategy::Oldest(_) if is_out => return,
                    SlotStrategy::Oldest(_) => self.promote(slot, now_ns),
                }
            } else if run.is_ending && !is_held_back {
                if !self.vacate(slot, now_ns) {
                    return;
                }
            } else {
                return;
            }
        }
    }

    /// Ends the sequence of `slot`, which has nothing waiting. True if the slot has another one
    /// now.
    fn vacate(&mut self, slot: SlotId, now_ns: u64) -> bool {
        let state = &mut self.instances[slot.instance()].slots[slot.row()];
        if let Some(id) = state.run.take()
            && let Some(run) = self.table.remove(id)
        {
            self.idle.forget(id, run.look_ns);
        }
        let next = self
            .free_slots
            .is_wanted(slot)
            .then(|| self.table.promote(slot, now_ns));
        match next.flatten() {
            Some(id) => {
                self.occupy(slot, id, now_ns);
                true
            }
            None => {
                self.free_slots.give(slot);
                false
            }
        }
    }

    /// Wants `instance`'s core to ask for a batch.
    fn call(&mut self, instance: usize) {
        let instance = &mut self.instances[instance];
        if !std::mem::replace(&mut instance.is_called, true) {
            self.called.push(instance.core);
        }
    }
}
