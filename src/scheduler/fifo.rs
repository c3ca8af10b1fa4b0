//! The default scheduler: one request per execution, in order of arrival.

use std::collections::VecDeque;

use conch_sync::{ClaimReason, PollState};

use crate::entry::Entry;
use crate::output::SchedulerOutput;

#[derive(Debug)]
pub struct Fifo<T> {
    queue: VecDeque<T>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Fifo<T> {
        Fifo {
            queue: VecDeque::new(),
        }
    }
}

impl<T: Entry> Fifo<T> {
    pub fn accept(&mut self, entry: T) {
        self.queue.push_back(entry);
    }

    pub fn form(&mut self, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        while let Some(entry) = self.queue.pop_front() {
            if let Some(owned) = entry.claim(ClaimReason::Execute) {
                output.batch.push(owned);
                break;
            }
        }
        self.poll_state()
    }

    /// What is left. Nobody shall get ready for one that somebody else has claimed.
    pub fn poll_state(&mut self) -> PollState {
        while self
            .queue
            .pop_front_if(|entry| !entry.is_waiting())
            .is_some()
        {}
        PollState::without_deadline(self.queue.is_empty())
    }
}
