//! The output of one drive of a scheduler.

use conch_sync::ClaimReason;

use crate::entry::Entry;
use crate::sequence_batcher::SequenceKey;

/// Why a request of a sequence is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// Its sequence is not known, and it does not start one.
    NotStarted,
    /// As many sequences wait for a slot as may.
    BacklogFull,
    /// Its sequence waited for a slot for too long.
    TimedOut,
    /// It, or an earlier one of its sequence, is cancelled.
    Cancelled,
}

/// What one drive of a scheduler produced.
#[derive(Debug)]
pub struct SchedulerOutput<O> {
    /// Requests to execute together; empty if it is not time yet.
    pub batch: Vec<O>,
    /// Requests whose timeout has passed under a rejecting policy.
    pub expired: Vec<O>,
    /// Requests that were cancelled while a strategy looked at them.
    pub cancelled: Vec<O>,
    /// Requests of sequences that are to be answered with an error.
    pub refused: Vec<(O, Dismissal)>,
    /// The slots, in their instance, of a batch of sequences; as long as the batch.
    pub rows: Vec<usize>,
    /// Rows of a direct batch: up to the highest slot that had a request ready, even one that does
    /// not fit the others.
    pub row_count: usize,
    /// Which of its core's instances has these slots.
    pub instance: usize,
    /// Cores that are to ask for a batch.
    pub called: Vec<usize>,
    /// Sequences that take no more requests, once they are being handed over.
    pub ended: Vec<SequenceKey>,
    /// Sequences that were started while they were under way.
    pub conflicts: Vec<SequenceKey>,
}

impl<O> SchedulerOutput<O> {
    pub(crate) fn refuse<T: Entry<Owned = O>>(
        &mut self,
        entry: &T,
        reason: ClaimReason,
        why: Dismissal,
    ) {
        self.refused
            .extend(entry.claim(reason).map(|owned| (owned, why)));
    }
}

impl<O> Default for SchedulerOutput<O> {
    fn default() -> SchedulerOutput<O> {
        SchedulerOutput {
            batch: Vec::new(),
            expired: Vec::new(),
            cancelled: Vec::new(),
            refused: Vec::new(),
            rows: Vec::new(),
            row_count: 0,
            instance: 0,
            called: Vec::new(),
            ended: Vec::new(),
            conflicts: Vec::new(),
        }
    }
}
