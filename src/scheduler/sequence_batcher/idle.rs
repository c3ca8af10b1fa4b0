//! Idle timeouts of sequences. One entry per sequence with a slot; an entry that comes too early is
//! put off.

use std::collections::BTreeSet;

use conch_sync::NEVER_NS;

use super::member::SequenceNumber;

#[derive(Debug, Default)]
pub(super) struct IdleSequences {
    looks: BTreeSet<(u64, SequenceNumber)>,
}

impl IdleSequences {
    pub(super) fn watch(&mut self, run: SequenceNumber, at_ns: u64) {
        self.looks.insert((at_ns, run));
    }

    pub(super) fn forget(&mut self, run: SequenceNumber, at_ns: u64) {
        self.looks.remove(&(at_ns, run));
    }

    /// The next sequence to look at, if its time has come.
    pub(super) fn due(&mut self, now_ns: u64) -> Option<SequenceNumber> {
        let (at_ns, run) = *self.looks.first()?;
        if at_ns > now_ns {
            return None;
        }
        self.looks.pop_first();
        Some(run)
    }

    pub(super) fn next_ns(&self) -> u64 {
        self.looks.first().map_or(NEVER_NS, |(at_ns, _)| *at_ns)
    }
}
