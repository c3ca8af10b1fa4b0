//! The simulator's requests: real claims, real turns, and a receiver that notes what reaches it.

use std::sync::{Arc, Mutex};

use conch_scheduler::{EntryKind, SchedulingParams, SequenceContext};
use conch_sync::{Claim, Owned};

use crate::response_order::OrderedCompletion;
use crate::{Completion, Delivery};

pub(super) type SimulatedHandle = Arc<Claim<SimulatedRequest, SimulatedPayload>>;
pub(super) type SimulatedOwned = Owned<SimulatedRequest, SimulatedPayload>;

/// What everyone with the handle may read.
pub(super) struct SimulatedRequest {
    pub(super) number: usize,
    pub(super) facts: SchedulingParams,
    /// On a model of sequences.
    pub(super) member: Option<SequenceContext>,
    /// Under preserve-ordering.
    pub(super) turn: Option<Arc<OrderedCompletion>>,
    pub(super) receiver: Arc<RecordingCompletion>,
}

/// What only its owner has.
pub(super) struct SimulatedPayload;

impl EntryKind for SimulatedRequest {
    fn facts(&self) -> &SchedulingParams {
        &self.facts
    }

    fn member(&self) -> Option<&SequenceContext> {
        self.member.as_ref()
    }
}

impl SimulatedRequest {
    /// Sends one response, or the end alone.
    pub(super) fn deliver(&self, is_final: bool) {
        let delivery = Delivery::new(self.number as u64, None, is_final);
        match &self.turn {
            Some(turn) => turn.deliver(delivery),
            None => self.receiver.deliver(delivery),
        }
    }
}

/// Notes what arrives, in order: number of the request, whether final.
#[derive(Default)]
pub(super) struct RecordingCompletion(Mutex<Vec<(usize, bool)>>);

impl RecordingCompletion {
    pub(super) fn take(&self) -> Vec<(usize, bool)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Completion for RecordingCompletion {
    fn deliver(&self, delivery: Delivery) {
        let number = usize::try_from(delivery.slot()).unwrap();
        self.0.lock().unwrap().push((number, delivery.is_final()));
    }

    fn wake(&self) {}
}
