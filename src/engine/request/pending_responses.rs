//! Deliveries that are collected while a batch executes.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Completion, Delivery, Error, RequestContext, Response};

/// Deliveries collected while a batch executes, so that each receiver is woken once.
#[derive(Default)]
pub struct PendingResponses {
    waiting: Vec<(Arc<dyn Completion>, Delivery)>,
    /// Receivers that have their deliveries and are still to be woken.
    unwoken: SmallVec<[Arc<dyn Completion>; 4]>,
}

impl PendingResponses {
    pub fn push(
        &mut self,
        origin: &RequestContext,
        outcome: Option<Result<Response, Error>>,
        is_final: bool,
    ) {
        self.push_delivery(origin, origin.delivery(outcome, is_final));
    }

    pub fn push_delivery(&mut self, origin: &RequestContext, delivery: Delivery) {
        self.push_to(&origin.completion, delivery);
    }

    pub(crate) fn push_to(&mut self, receiver: &Arc<dyn Completion>, delivery: Delivery) {
        self.waiting.push((Arc::clone(receiver), delivery));
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Delivers everything in order, then wakes each receiver once.
    pub fn flush(&mut self) {
        self.deliver();
        for completion in self.unwoken.drain(..) {
            completion.wake();
        }
    }

    /// As [`flush`](Self::flush), but leaves receivers on `cpu` to be woken by the next one.
    pub(crate) fn flush_beyond(&mut self, cpu: usize) {
        self.deliver();
        self.unwoken.retain(|completion| {
            let is_here = completion.is_on(cpu);
            if !is_here {
                completion.wake();
            }
            is_here
        });
    }

    /// Whether receivers are still to be woken.
    pub(crate) fn has_unwoken(&self) -> bool {
        !self.unwoken.is_empty()
    }

    /// Whether receivers that are still to be woken have not taken what they got.
    pub(crate) fn has_waiting(&self) -> bool {
        self.unwoken.iter().any(|receiver| receiver.has_waiting())
    }

    fn deliver(&mut self) {
        for (completion, delivery) in self.waiting.drain(..) {
            completion.deliver(delivery);
            let is_known = |known: &Arc<dyn Completion>| Arc::ptr_eq(known, &completion);
            if !self.unwoken.iter().any(is_known) {
                self.unwoken.push(completion);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Recorder;

    #[test]
    fn receivers_on_the_cpu_are_woken_later_and_once() {
        let (near, far) = (Arc::new(Recorder::near()), Arc::new(Recorder::default()));
        let mut pending = PendingResponses::default();
        let push = |pending: &mut PendingResponses| {
            for receiver in [&near, &far] {
                let receiver: Arc<dyn Completion> = Arc::clone(receiver) as _;
                pending.push_to(&receiver, Delivery::new(0, None, true));
            }
        };
        for round in 1..=3 {
            push(&mut pending);
            pending.flush_beyond(3);
            // Delivered at once.
            assert_eq!((near.wait(1).len(), far.wait(1).len()), (1, 1));
            assert_eq!((near.wake_count(), far.wake_count()), (0, round));
            assert!(pending.has_unwoken());
        }
        pending.flush();
        assert_eq!((near.wake_count(), far.wake_count()), (1, 3));
        assert!(!pending.has_unwoken());
    }
}
