//! The simulator's requests: real claims, real turns, and a receiver that notes what reaches it.

use std::sync::{Arc, Mutex};

use conch_sync::{Claim, Owned};

use crate::order::Turn;
use crate::scheduler::{Facts, Membership, Subject};
use crate::{Completion, Delivery};

pub(super) type Ticket = Arc<Claim<Card, Errand>>;
pub(super) type Live = Owned<Card, Errand>;

/// What everyone with the ticket may read.
pub(super) struct Card {
    pub(super) number: usize,
    pub(super) facts: Facts,
    /// On a model of sequences.
    pub(super) member: Option<Membership>,
    /// Under preserve-ordering.
    pub(super) turn: Option<Arc<Turn>>,
    pub(super) receiver: Arc<Receiver>,
}

/// What only its owner has.
pub(super) struct Errand;

impl Subject for Card {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn member(&self) -> Option<&Membership> {
        self.member.as_ref()
    }
}

impl Card {
    /// Sends one response, or the end alone.
    pub(super) fn deliver(&self, is_final: bool) {
        let delivery = Delivery {
            slot: self.number as u64,
            outcome: None,
            is_final,
        };
        match &self.turn {
            Some(turn) => turn.deliver(delivery),
            None => self.receiver.deliver(delivery),
        }
    }
}

/// Notes what arrives, in order: number of the request, whether final.
#[derive(Default)]
pub(super) struct Receiver(Mutex<Vec<(usize, bool)>>);

impl Receiver {
    pub(super) fn take(&self) -> Vec<(usize, bool)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Completion for Receiver {
    fn deliver(&self, delivery: Delivery) {
        let number = usize::try_from(delivery.slot).unwrap();
        self.0.lock().unwrap().push((number, delivery.is_final));
    }

    fn wake(&self) {}
}
