//! The queue for cores that keep batches in flight, and wait for several queues at once.

use conch_scheduler::SchedulerOutput;
use conch_sync::{LimitedWait, SharedWait, Worker};

use crate::clock::Monotonic;
use crate::execution::queue::{AT_ONCE_NS, ModelQueue};
use crate::{OwnedRequest, PendingResponses};

/// What a core that keeps batches in flight is to do next.
pub(crate) enum StreamTurn {
    /// Enqueue the batch.
    Batch,
    /// Sleep until then, or until it is called.
    Listed(u64),
    /// End, once nothing is in flight.
    Over,
}

impl ModelQueue {
    /// As [`ModelQueue::next`] for a core that keeps batches in flight; does not wait. None without
    /// a batch.
    pub(crate) fn next_in_flight(
        &self,
        worker: &mut Worker,
        output: &mut SchedulerOutput<OwnedRequest>,
        pending: &mut PendingResponses,
    ) -> Option<StreamTurn> {
        let core = worker.core();
        loop {
            let wait = self.pool.next_until(
                worker,
                &Monotonic,
                AT_ONCE_NS,
                |scheduler, arrivals, now_ns| {
                    self.form_work(core, scheduler, arrivals, now_ns, output)
                },
            );
            match wait {
                LimitedWait::Batch(turn) => {
                    self.answer_unexecuted(turn.unwatched_deadline_ns, output, pending);
                    if !output.batch.is_empty() {
                        return Some(StreamTurn::Batch);
                    }
                }
                LimitedWait::TimedOut => return None,
                LimitedWait::Over => {
                    self.part_with(worker);
                    return Some(StreamTurn::Over);
                }
            }
        }
    }

    /// As [`ModelQueue::next_in_flight`], but without a batch the core is in the idle set, from
    /// where arrivals wake it, until [`ModelQueue::end_wait`].
    pub(crate) fn next_or_list(
        &self,
        worker: &mut Worker,
        output: &mut SchedulerOutput<OwnedRequest>,
        pending: &mut PendingResponses,
    ) -> StreamTurn {
        let core = worker.core();
        loop {
            let wait = self
                .pool
                .next_or_list(worker, &Monotonic, |scheduler, arrivals, now_ns| {
                    self.form_work(core, scheduler, arrivals, now_ns, output)
                });
            match wait {
                SharedWait::Batch(turn) => {
                    self.answer_unexecuted(turn.unwatched_deadline_ns, output, pending);
                    if !output.batch.is_empty() {
                        return StreamTurn::Batch;
                    }
                }
                SharedWait::Listed(until_ns) => return StreamTurn::Listed(until_ns),
                SharedWait::Over => {
                    self.part_with(worker);
                    return StreamTurn::Over;
                }
            }
        }
    }

    /// A core that was [listed](StreamTurn::Listed) until `until_ns` waits no more.
    pub(crate) fn end_wait(&self, worker: &mut Worker, until_ns: u64) {
        self.pool.end_wait(worker, until_ns);
    }

    /// Whether somebody wants core number `core` to look.
    pub(crate) fn is_called(&self, core: usize) -> bool {
        self.pool.is_unparked(core)
    }

    /// Forgets a call of core number `core`, which is not listed: its next look finds the reason.
    pub(crate) fn clear_call(&self, core: usize) {
        self.pool.clear_unpark(core);
    }

    /// Makes the calling thread that of a core whose thread does not come back to it.
    pub(crate) fn move_here(&self, worker: &Worker) {
        self.pool.move_here(worker);
    }
}
