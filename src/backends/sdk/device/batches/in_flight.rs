//! A batch between its enqueueing and its answer.

use std::time::Duration;

use crate::device::pending::PendingWork;
use crate::device::timeline::{BatchTimeline, MarkedStages};
use crate::state::StateUpdate;
use crate::{Batch, DetachedBatch, Error};

/// What was enqueued of a batch.
#[derive(Default)]
pub(super) struct EnqueuedWork {
    pub(super) pending: PendingWork,
    /// Next values of states, by the numbers of their requests: they take effect when the device
    /// is done.
    pub(super) updates: Vec<(usize, StateUpdate)>,
    /// Host memory that copies read.
    pub(super) bytes: Vec<Vec<u8>>,
    /// All marks were recorded: the last one tells when the device is done. Else it has nothing of
    /// the batch any more.
    pub(super) is_marked: bool,
    pub(super) marked: MarkedStages,
    pub(super) delay: Duration,
}

/// A batch that the device works on, and what keeps its memory.
pub(super) struct InFlightBatch {
    batch: DetachedBatch,
    work: EnqueuedWork,
    pub(super) is_marked: bool,
    pub(super) enqueued_ns: u64,
    /// Not finished before; 0 without a delay.
    pub(super) due_ns: u64,
}

impl InFlightBatch {
    /// A delay counts from `not_before_ns`.
    pub(super) fn new(
        batch: DetachedBatch,
        work: EnqueuedWork,
        enqueued_ns: u64,
        not_before_ns: u64,
    ) -> Self {
        let delay_ns = u64::try_from(work.delay.as_nanos()).unwrap_or(u64::MAX);
        InFlightBatch {
            batch,
            is_marked: work.is_marked,
            work,
            enqueued_ns,
            due_ns: match delay_ns {
                0 => 0,
                delay_ns => not_before_ns.saturating_add(delay_ns),
            },
        }
    }

    pub(super) fn marked(&self) -> MarkedStages {
        self.work.marked
    }

    /// Whether it need not be waited for.
    pub(super) fn is_done(&self) -> bool {
        !self.is_marked && self.due_ns == 0
    }

    /// Answers all requests. `outcome` is that of the streams, of which none has anything of the
    /// batch any more; `timeline` is what the device tells.
    pub(super) fn finish(
        self,
        outcome: Result<(), Error>,
        timeline: Option<BatchTimeline>,
        noticed_ns: u64,
    ) {
        let InFlightBatch {
            batch,
            work,
            enqueued_ns,
            due_ns,
            ..
        } = self;
        let EnqueuedWork {
            mut pending,
            updates,
            bytes,
            ..
        } = work;
        if let Err(error) = outcome {
            pending.fail_owners(&error);
        }
        // SAFETY: the streams have nothing of it any more. Targets are memory of responses and
        // states, which are with the batch; staging memory is the batch's until the slot is reset.
        let failures = unsafe { pending.finish() };
        drop(bytes);
        let mut timeline =
            timeline.unwrap_or_else(|| BatchTimeline::unknown(enqueued_ns, noticed_ns));
        if due_ns > 0 {
            timeline.extend_compute(noticed_ns);
        }
        batch.finish(|batch| {
            answer(batch, failures, updates, &timeline);
            Ok(())
        });
    }
}

fn answer(
    batch: &Batch<'_>,
    failures: Vec<(usize, Error)>,
    updates: Vec<(usize, StateUpdate)>,
    timeline: &BatchTimeline,
) {
    batch.set_compute_times(timeline.staged_in_ns, timeline.computed_ns);
    let mut errors = vec![None; batch.len()];
    for (owner, error) in failures {
        if let Some(found) = errors.get_mut(owner) {
            found.get_or_insert(error);
        }
    }
    for (owner, update) in updates {
        // The state of a request that failed stays as it was.
        if let Some(found @ None) = errors.get_mut(owner) {
            // SAFETY: the request is one of the batch, which is not finished yet.
            *found = unsafe { update.apply() }.err();
        }
    }
    for (request, error) in batch.requests().zip(errors) {
        timeline.report(request);
        match (request.take_kept(), error) {
            (Some(response), None) => {
                if let Err(error) = response.send() {
                    crate::error!("failed to send a response: {error}");
                }
            }
            (Some(response), Some(error)) => response.fail(error),
            (None, Some(error)) => request.fail(error),
            (None, None) => request.fail(Error::internal("the request has no response")),
        }
    }
}
