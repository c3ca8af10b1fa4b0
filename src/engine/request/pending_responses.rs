//! Deliveries that are collected while a batch executes.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Completion, Delivery, Error, RequestContext, Response};

/// Deliveries collected while a batch executes, so that each receiver is woken once.
#[derive(Default)]
pub struct PendingResponses {
    waiting: Vec<(Arc<dyn Completion>, Delivery)>,
}

impl PendingResponses {
    pub fn push(
        &mut self,
        origin: &RequestContext,
        outcome: Option<Result<Response, Error>>,
        is_final: bool,
    ) {
        self.push_delivery(origin, Delivery::new(origin.slot, outcome, is_final));
    }

    pub fn push_delivery(&mut self, origin: &RequestContext, delivery: Delivery) {
        self.waiting
            .push((Arc::clone(&origin.completion), delivery));
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Delivers everything in order, then wakes each receiver once.
    pub fn flush(&mut self) {
        let mut woken: SmallVec<[Arc<dyn Completion>; 4]> = SmallVec::new();
        for (completion, delivery) in self.waiting.drain(..) {
            completion.deliver(delivery);
            if !woken.iter().any(|known| Arc::ptr_eq(known, &completion)) {
                woken.push(completion);
            }
        }
        for completion in woken {
            completion.wake();
        }
    }
}
