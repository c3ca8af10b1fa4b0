//! Requests that arrive, are cancelled, and come back.

use conch_sync::ClaimReason;

use super::batcher::SequenceBatcher;
use super::member::{SequenceContext, SequenceNumber, SlotId};
use crate::entry::Entry;
use crate::output::{Dismissal, SchedulerOutput};

impl<T: Entry> SequenceBatcher<T> {
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
        let Some(id) = self.sequence_of(&entry, member, now_ns, output) else {
            return;
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
            self.table.shorten_timeout(id, expires_ns);
        }
        if member.is_end {
            self.table.close(id);
        }
        if entry.is_cancelled() {
            self.cancel(&entry, now_ns, output);
        } else if let Some(slot) = slot {
            self.update_slot(slot, now_ns);
        }
    }

    /// The sequence that an arrival joins, or starts. None: it was refused.
    fn sequence_of(
        &mut self,
        entry: &T,
        member: &SequenceContext,
        now_ns: u64,
        output: &mut SchedulerOutput<T::Owned>,
    ) -> Option<SequenceNumber> {
        if let Some(id) = self.table.find(&member.key) {
            if member.is_start {
                output.conflicts.push(member.key.clone());
            }
            return Some(id);
        }
        if !member.is_start {
            output.refuse(entry, ClaimReason::Expire, Dismissal::NotStarted);
            return None;
        }
        let slot = self.free_slots.pop_lowest();
        if slot.is_none() && self.table.backlog_count() >= self.backlog_max {
            output.refuse(entry, ClaimReason::Expire, Dismissal::BacklogFull);
            return None;
        }
        let id = self.table.start(&member.key, slot, now_ns);
        if let Some(slot) = slot {
            self.occupy(slot, id, now_ns);
        }
        Some(id)
    }

    /// A request that was given out has come back, and is done with. It may come twice: where
    /// somebody wanted it cancelled just then.
    pub fn release(&mut self, entry: &T, now_ns: u64) {
        let Some((member, slot)) = self.take_back(entry, now_ns) else {
            return;
        };
        if self.is_iterative
            && let Some(id) = member.run()
        {
            // One that does not ask to be run again ends its sequence.
            self.table.close(id);
        }
        self.update_slot(slot, now_ns);
    }

    /// A request that was given out has come back to be run again, after what its sequence has
    /// waiting.
    pub fn reschedule(&mut self, entry: T, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        let Some((member, slot)) = self.take_back(&entry, now_ns) else {
            return;
        };
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
        self.update_slot(slot, now_ns);
    }

    /// Frees the slot of a request that was given out for the next request. None if it has come
    /// back before, or if requests do not come back one by one.
    fn take_back<'e>(
        &mut self,
        entry: &'e T,
        now_ns: u64,
    ) -> Option<(&'e SequenceContext, SlotId)> {
        if !self.awaits() {
            return None;
        }
        let member = entry.member().filter(|member| member.take_back())?;
        let slot = member.slot();
        let rest = self.out_count.checked_sub(1);
        self.out_count = rest.expect("a request comes back once");
        let state = self.instances.slot_mut(slot);
        state.come_back();
        if let Some(run) = state.holder().and_then(|id| self.table.get_mut(id)) {
            run.active_ns = now_ns;
        }
        Some((member, slot))
    }

    /// Somebody asked to cancel `entry`, which has arrived: it and all behind it in its sequence
    /// end, and with them the sequence.
    fn cancel(&mut self, entry: &T, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        let Some(member) = entry.member() else { return };
        if !entry.is_waiting() {
            // It executes, and its backend sees the wish; or it was answered. The thread that
            // brought it back may have found it on its way to here.
            if member.is_back() {
                self.release(entry, now_ns);
            }
            return;
        }
        let slot = member.slot();
        if self.instances.withdraw(slot, entry) {
            // Its instance's batcher finds it claimed.
            output.refuse(entry, ClaimReason::Cancel, Dismissal::Cancelled);
            self.count_out_of_queue(1);
            if let Some(id) = member.run() {
                self.cut(id, 0, now_ns, output);
            }
            self.update_slot(slot, now_ns);
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
                self.update_slot(slot, now_ns);
            }
            None => drop(self.table.remove(id)),
        }
    }
}
