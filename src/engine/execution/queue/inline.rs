//! Batches that threads which submit execute, while the core is idle.

use std::sync::Arc;
use std::time::Duration;

use conch_config::{InlinePolicy, InstanceKind, Scheduling};

use crate::OwnedRequest;
use crate::clock::{Monotonic, monotonic_ns};
use crate::execution::queue::{ModelQueue, deadline_of};
use crate::execution::seat::{Seat, SeatState};
use crate::request::inline::{
    InlineBudget, InlineDuration, InlineExecution, InlineQueue, Progress,
};

/// Batches of more requests are left to the core: each takes some microseconds.
const INLINE_REQUESTS_MAX: usize = 16;
/// Offers that are refused at first: a new model's executions take longer.
pub(crate) const FIRST_REFUSALS: u32 = 16;
/// Executions up to this are short: a submitter whose CPU a core would take spends about as long on
/// two switches, on waking a core, and on taking in what that delivers.
const SHORT: Duration = Duration::from_micros(30);
/// Executions up to this are brief: the submitter would spend about as long on waking a core and on
/// taking in what that delivers.
const BRIEF: Duration = Duration::from_micros(10);

impl ModelQueue {
    /// Lets other threads execute at `seat`, if its instance is made for that or its model says so,
    /// and its queue forms a batch of whatever is there. One core's seat is enough: submitters are
    /// alone, or executions are brief.
    pub(crate) fn open_seat(&self, seat: &Arc<Seat>) {
        let is_immediate = match &self.config.scheduling {
            Scheduling::Default => true,
            Scheduling::Dynamic(settings) => settings.max_queue_delay_us == 0,
            _ => false,
        };
        let policy = self.config.own.inline;
        let is_wanted = matches!(policy, InlinePolicy::Always | InlinePolicy::Callers);
        if is_immediate
            && policy != InlinePolicy::Never
            && !self.has_strategy
            && self.inline_seats.open().is_none()
            && seat.takes_inline(is_wanted && self.is_on_cpu())
        {
            self.inline_seats.add(seat);
        }
    }

    fn is_on_cpu(&self) -> bool {
        let groups = &self.config.instance_groups;
        groups.iter().all(|group| group.kind == InstanceKind::Cpu)
    }

    /// This queue, if a batch can be executed inline now, and is likely to take no longer than
    /// `duration`.
    pub(crate) fn inline(&self, duration: InlineDuration) -> Option<Arc<dyn InlineQueue>> {
        let open = self.inline_seats.open()?;
        // A core that is awake and executes nothing may be faster: then nothing is lost. Left with
        // all requests of a submitter that shares its CPU, it would not come to its end. Where the
        // core is idle and the seat is busy, this thread may be the one that executes there.
        let is_free = self.pool.is_idle(open.core()) || !open.is_busy();
        if !is_free || !self.inline_backoff.is_due() {
            return None;
        }
        let is_likely = match duration {
            InlineDuration::Any => true,
            InlineDuration::Short => self.short_backoff.is_due(),
            InlineDuration::Brief => self.brief_backoff.is_due(),
        };
        if !is_likely {
            return None;
        }
        let queue = self.own.upgrade()?;
        Some(queue)
    }
}

impl InlineQueue for ModelQueue {
    fn execute_inline(
        &self,
        limit: Duration,
        budget: InlineBudget,
        duration: InlineDuration,
    ) -> Option<InlineExecution> {
        // An execution for another turn has seen to the request.
        if !self.pool.has_work() {
            return None;
        }
        let seat = self.inline_seats.open();
        let Some((seat, mut state)) = seat.and_then(|seat| Some((seat, seat.try_enter()?))) else {
            self.leave_to_core();
            return None;
        };
        let mut execution = self.execute_batch(seat, &mut state, limit, duration);
        let mut has_more = execution.batch_count > 0;
        while has_more
            && execution.is_left
            && execution.progress == Progress::Done
            && execution.batch_count <= budget.further_count
            && u128::from(execution.duration_ns) < budget.time.as_nanos()
        {
            let next = self.execute_batch(seat, &mut state, limit, duration);
            has_more = next.batch_count > 0;
            execution = InlineExecution {
                batch_count: execution.batch_count + next.batch_count,
                duration_ns: execution.duration_ns + next.duration_ns,
                ..next
            };
        }
        drop(state);
        if execution.progress == Progress::Open {
            seat.call();
            self.pool.notify(seat.core());
        }
        // Who runs the turn again looks for work alone, not for deadlines.
        if execution.is_left && !self.pool.has_work() {
            self.leave_to_core();
            execution.is_left = false;
        }
        (execution.batch_count > 0 || execution.is_left).then_some(execution)
    }

    fn leave_to_core(&self) {
        self.pool.wake_one();
    }
}

impl ModelQueue {
    /// Forms a batch and executes it at `seat`, which the thread has entered. Nobody was woken for
    /// what is left.
    fn execute_batch(
        &self,
        seat: &Seat,
        state: &mut SeatState,
        limit: Duration,
        duration: InlineDuration,
    ) -> InlineExecution {
        let output = &mut state.output;
        // Where another thread has the lock, it looks again and wakes a core.
        let visit = self
            .pool
            .try_drive_unwoken(&Monotonic, |scheduler, arrivals, now_ns| {
                let poll_state = self.form(seat.core(), scheduler, arrivals, now_ns, output);
                ((), poll_state)
            });
        let is_left = visit.as_ref().is_some_and(|visit| visit.is_left);
        let visited = visit.map(|visit| (visit.result, visit.poll_state));
        self.answer_unexecuted(deadline_of(visited).1, output, &mut state.pending);
        if output.batch.is_empty() {
            // A core was faster.
            state.pending.flush();
            return InlineExecution {
                progress: Progress::Done,
                batch_count: 0,
                duration_ns: 0,
                is_left,
            };
        }
        let begin_ns = monotonic_ns();
        // It may have requests of other submitters.
        let is_small = output.batch.len() <= INLINE_REQUESTS_MAX
            && input_bytes(&output.batch) <= duration.bytes_max();
        seat.begin_busy(0);
        let progress = if is_small {
            state.begin(limit)
        } else {
            state.leave();
            Progress::Open
        };
        // Else once the core has ended it.
        if progress == Progress::Done {
            seat.end_busy();
        }
        self.note_duration(progress, monotonic_ns().saturating_sub(begin_ns), limit);
        // Of an ensemble it starts the next steps.
        state.pending.flush();
        InlineExecution {
            progress,
            batch_count: 1,
            duration_ns: monotonic_ns().saturating_sub(begin_ns),
            is_left,
        }
    }

    /// Has further offers taken, or refused for a while, after an execution that took so long.
    fn note_duration(&self, progress: Progress, duration_ns: u64, limit: Duration) {
        let took_at_most = |limit: Duration| {
            progress == Progress::Done && u128::from(duration_ns) <= limit.as_nanos()
        };
        // Failure: other submitters hear of it by their offers.
        let _ = self.brief_backoff.note(took_at_most(BRIEF));
        let _ = self.short_backoff.note(took_at_most(SHORT));
        if self.inline_backoff.note(took_at_most(limit)) {
            conch_log::verbose!(
                1,
                "model '{}' is left to its cores for a while: an inline execution did not end \
                 within {} us",
                self.config.name,
                limit.as_micros()
            );
        }
    }
}

fn input_bytes(batch: &[OwnedRequest]) -> usize {
    let inputs = batch.iter().flat_map(|live| &live.inputs);
    inputs
        .flat_map(|input| &input.chunks)
        .fold(0, |sum, chunk| sum.saturating_add(chunk.len()))
}
