//! Idle timeouts of sequences. One entry per sequence with a slot; an entry that comes too early is
//! put off.

use std::collections::BTreeSet;

use conch_sync::NEVER_NS;

use super::member::SequenceNumber;

#[derive(Debug, Default)]
pub(super) struct IdleSequences {
    checks: BTreeSet<(u64, SequenceNumber)>,
}

impl IdleSequences {
    pub(super) fn insert(&mut self, run: SequenceNumber, at_ns: u64) {
        self.checks.insert((at_ns, run));
    }

    pub(super) fn remove(&mut self, run: SequenceNumber, at_ns: u64) {
        self.checks.remove(&(at_ns, run));
    }

    /// The next sequence to check, if its time has come.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<SequenceNumber> {
        let (at_ns, run) = *self.checks.first()?;
        if at_ns > now_ns {
            return None;
        }
        self.checks.pop_first();
        Some(run)
    }

    pub(super) fn next_ns(&self) -> u64 {
        self.checks.first().map_or(NEVER_NS, |(at_ns, _)| *at_ns)
    }
}
