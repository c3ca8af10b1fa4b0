//! Batches that threads which submit execute, while the core is idle.

use std::sync::Arc;
use std::time::Duration;

use conch_config::{InlinePolicy, InstanceKind, Scheduling};

use crate::OwnedRequest;
use crate::clock::{Monotonic, monotonic_ns};
use crate::execution::queue::{ModelQueue, deadline_of};
use crate::execution::seat::Seat;
use crate::request::inline::{INLINE_BYTES_MAX, InlineExecution, InlineQueue, Progress};

/// Batches of more requests are left to the core: each takes some microseconds.
const INLINE_REQUESTS_MAX: usize = 16;
/// Offers that are refused at first: a new model's executions take longer.
pub(crate) const FIRST_REFUSALS: u32 = 16;

impl ModelQueue {
    /// Lets other threads execute at `seat`, if its instance is made for that or its model says so,
    /// and its queue forms a batch of whatever is there. One core's seat is enough: only submitters
    /// that are alone make offers.
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
            && self.inline_seat.load().is_none()
            && seat.takes_inline(is_wanted && self.is_on_cpu())
        {
            self.inline_seat.store(Some(Arc::clone(seat)));
        }
    }

    fn is_on_cpu(&self) -> bool {
        let groups = &self.config.instance_groups;
        groups.iter().all(|group| group.kind == InstanceKind::Cpu)
    }

    /// The core of `seat` is about to end.
    pub(crate) fn close_seat(&self, seat: &Arc<Seat>) {
        let is_it = |open: &Option<Arc<Seat>>| {
            let open = open.as_ref();
            open.is_some_and(|open| Arc::ptr_eq(open, seat))
        };
        if is_it(&self.inline_seat.load()) {
            self.inline_seat.store(None);
        }
    }

    /// This queue, if a batch can be executed inline now.
    pub(crate) fn inline(&self) -> Option<Arc<dyn InlineQueue>> {
        let seat = self.inline_seat.load();
        if !self.pool.is_idle(seat.as_ref()?.core()) || !self.inline_backoff.is_due() {
            return None;
        }
        let queue = self.own.upgrade()?;
        Some(queue)
    }
}

impl InlineQueue for ModelQueue {
    fn execute_inline(&self, limit: Duration) -> Option<InlineExecution> {
        let seat = self.inline_seat.load_full();
        let Some((seat, mut state)) = seat
            .as_ref()
            .and_then(|seat| Some((seat, seat.try_enter()?)))
        else {
            self.leave_to_core();
            return None;
        };
        let state_now = &mut *state;
        let output = &mut state_now.output;
        // Where another thread has the lock, it looks again and wakes a core.
        let visited = self
            .pool
            .try_drive(&Monotonic, |scheduler, arrivals, now_ns| {
                let poll_state = self.form(seat.core(), scheduler, arrivals, now_ns, output);
                ((), poll_state)
            });
        self.answer_unexecuted(deadline_of(visited).1, output, &mut state_now.pending);
        if output.batch.is_empty() {
            // A core was faster.
            state_now.pending.flush();
            return None;
        }
        let begin_ns = monotonic_ns();
        // It may have requests of other submitters.
        let is_small = output.batch.len() <= INLINE_REQUESTS_MAX
            && input_bytes(&output.batch) <= INLINE_BYTES_MAX;
        seat.begin_busy(0);
        let progress = if is_small {
            state_now.begin(limit)
        } else {
            state_now.pending.flush();
            state_now.leave();
            Progress::Open
        };
        // Else once the core has ended it.
        if progress == Progress::Done {
            seat.end_busy();
        }
        drop(state);
        let duration_ns = monotonic_ns().saturating_sub(begin_ns);
        let was_brief = progress == Progress::Done && u128::from(duration_ns) <= limit.as_nanos();
        if self.inline_backoff.note(was_brief) {
            conch_log::verbose!(
                1,
                "model '{}' is left to its cores for a while: an inline execution did not end \
                 within {} us",
                self.config.name,
                limit.as_micros()
            );
        }
        if progress == Progress::Open {
            seat.call();
            self.pool.notify(seat.core());
        }
        Some(InlineExecution {
            progress,
            duration_ns,
        })
    }

    fn leave_to_core(&self) {
        self.pool.wake_one();
    }
}

fn input_bytes(batch: &[OwnedRequest]) -> usize {
    let inputs = batch.iter().flat_map(|live| &live.inputs);
    inputs
        .flat_map(|input| &input.chunks)
        .fold(0, |sum, chunk| sum.saturating_add(chunk.len()))
}
