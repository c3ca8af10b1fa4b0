//! Batches, and what is due by the clock.

use conch_sync::{ClaimReason, NEVER_NS, PollState};

use super::batcher::{SequenceBatcher, SlotStrategy};
use super::instances::CoreDemand;
use super::member::{SequenceNumber, SlotId};
use crate::entry::Entry;
use crate::output::{Dismissal, SchedulerOutput};

impl<T: Entry> SequenceBatcher<T> {
    /// Forms a batch for `core`, if there is one at `now_ns`. A core that asks for the first time
    /// has come, with one instance.
    pub fn form(
        &mut self,
        core: usize,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) -> PollState {
        if self.instances.of_core(core).is_empty() {
            self.add_core(core, now_ns);
        }
        let instances = self.instances.of_core(core);
        for instance in instances.clone() {
            if self.instances.get(instance).is_busy {
                self.end_execution(instance, now_ns);
            }
        }
        self.advance_clock(now_ns, output);
        if self.delay.is_some() && self.is_delayed() {
            return self.poll_state(output);
        }
        for instance in instances.clone() {
            if !self.instances.get_mut(instance).answer_call() {
                continue;
            }
            match &self.strategy {
                SlotStrategy::Direct(_) => self.form_direct(instance, now_ns, output),
                SlotStrategy::Oldest(_) => self.form_oldest(instance, now_ns, output),
            }
            if !output.batch.is_empty() {
                self.instances.get_mut(instance).is_busy = true;
                output.instance = instance - instances.start;
                self.count_out_of_queue(output.batch.len());
                if self.awaits() {
                    self.out_count += output.batch.len();
                }
                break;
            }
        }
        self.instances.call_again(core);
        self.poll_state(output)
    }

    /// Ends what has timed out, without forming a batch: for the time while every instance
    /// executes.
    pub fn expire(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        self.advance_clock(now_ns, output);
        self.poll_state(output)
    }

    fn poll_state(&mut self, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        self.instances.take_called(&mut output.called);
        self.table.take_ends(&mut output.ended);
        let deadline_ns = self
            .instances
            .next_ns()
            .min(self.idle.next_ns())
            .min(self.table.next_timeout_ns());
        PollState {
            // Whoever has something to do is called.
            is_ready: false,
            deadline_ns,
            is_empty: self.waiting_count == 0 && self.out_count == 0,
        }
    }

    /// Whether nothing may be executed yet.
    fn is_delayed(&mut self) -> bool {
        let Some(delay) = &self.delay else {
            return false;
        };
        let backlog_count = self.table.backlog_request_count();
        if self.waiting_count - backlog_count < delay.request_count
            || backlog_count < delay.backlog_count
        {
            return true;
        }
        self.delay = None;
        self.instances.call_all();
        false
    }

    /// An instance asks again: where requests are not brought back, what it was given has been
    /// executed.
    fn end_execution(&mut self, instance: usize, now_ns: u64) {
        let awaits = self.awaits();
        let instance = self.instances.get_mut(instance);
        instance.is_busy = false;
        if awaits {
            return;
        }
        for slot in instance.slots.iter_mut().filter(|slot| slot.is_out()) {
            slot.come_back();
            if let Some(run) = slot.holder().and_then(|id| self.table.get_mut(id)) {
                run.active_ns = now_ns;
            }
        }
    }

    fn form_direct(
        &mut self,
        instance: usize,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) {
        let SlotStrategy::Direct(direct) = self.strategy else {
            return;
        };
        let state = self.instances.get_mut(instance);
        let Some(ready) = direct.ready_rows(&state.slots, &self.table) else {
            return;
        };
        if let Some(until_ns) = direct.wait_until(&ready, now_ns) {
            state.set_demand(CoreDemand::at(until_ns));
            return;
        }
        direct.form(
            instance,
            &mut state.slots,
            &mut self.table,
            &ready,
            now_ns,
            output,
        );
        for index in 0..output.rows.len() {
            self.update_slot(SlotId::new(instance, output.rows[index]), now_ns);
        }
        // Those that did not fit are for the next step.
        let state = self.instances.get_mut(instance);
        if direct.has_ready(&state.slots, &self.table) {
            state.set_demand(CoreDemand::Now);
        }
    }

    fn form_oldest(
        &mut self,
        instance: usize,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) {
        let SlotStrategy::Oldest(oldest) = &mut self.strategy else {
            return;
        };
        let state = self.instances.get_mut(instance);
        let demand = oldest.form(instance, &mut state.slots, now_ns, output);
        state.set_demand(demand);
    }

    /// What is due by the clock.
    fn advance_clock(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        self.instances.call_due(now_ns);
        while let Some(id) = self.table.expired(now_ns) {
            if let Some(run) = self.table.remove(id) {
                self.refuse_all(run.queue, ClaimReason::Expire, Dismissal::TimedOut, output);
            }
        }
        while let Some(id) = self.idle.pop_due(now_ns) {
            self.check_idle(id, now_ns);
        }
    }

    /// Ends a sequence that is idle, or puts the check off.
    fn check_idle(&mut self, id: SequenceNumber, now_ns: u64) {
        let Some(run) = self.table.get_mut(id) else {
            return;
        };
        run.idle_check_ns = NEVER_NS;
        let Some(slot) = run.slot else { return };
        if !run.queue.is_empty() || self.instances.slot(slot).is_out() {
            run.active_ns = now_ns;
        }
        let until_ns = run.active_ns.saturating_add(self.idle_ns);
        if until_ns > now_ns {
            run.idle_check_ns = until_ns;
            self.idle.insert(id, until_ns);
        } else {
            self.table.close(id);
            self.update_slot(slot, now_ns);
        }
    }
}
