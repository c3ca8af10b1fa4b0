//! Preserve-ordering: responses of a model leave in the order in which its requests were batched.
//!
//! Each request of such a model gets a [`OrderedCompletion`] in front of its completion. Its place
//! in the order is reserved when it joins a batch (under the lock, so batches of several instances
//! have one order); deliveries of later places wait until the earlier ones are final. A request
//! that never joined a batch (cancelled, timed out) has no place and is answered at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use crate::request::response_turn::ResponseTurn;
use crate::{Completion, Delivery};

/// The order of one model's responses.
#[derive(Debug, Default)]
pub(crate) struct ResponseOrder {
    reserved: AtomicU64,
    // A lock on the data plane: only models that ask for it pay, and it is held to move a few
    // deliveries.
    waiting: Mutex<WaitingDeliveries>,
}

/// A delivery that waits, and where it is to go.
type HeldDelivery = Option<(Arc<dyn Completion>, Delivery)>;

#[derive(Debug, Default)]
struct WaitingDeliveries {
    /// Places whose final delivery has left.
    left: u64,
    /// Deliveries of later places, in order of arrival within each; none for a place that was given
    /// up.
    deliveries: BTreeMap<u64, Vec<HeldDelivery>>,
}

/// One request's place in its model's order, in front of its completion.
#[derive(Debug)]
pub(crate) struct OrderedCompletion {
    inner: Arc<dyn Completion>,
    order: Arc<ResponseOrder>,
    /// 1-based; 0 while it has none.
    place: AtomicU64,
    /// Whether the final delivery was made.
    is_final: AtomicBool,
}

impl OrderedCompletion {
    pub(crate) fn new(
        order: &Arc<ResponseOrder>,
        inner: &Arc<dyn Completion>,
    ) -> Arc<OrderedCompletion> {
        Arc::new(OrderedCompletion {
            inner: Arc::clone(inner),
            order: Arc::clone(order),
            place: AtomicU64::new(0),
            is_final: AtomicBool::new(false),
        })
    }

    /// Takes the next place, unless it has one: a request that is run again keeps its place. Called
    /// under the lock of the model.
    pub(crate) fn reserve(&self) {
        if self.place.load(Ordering::Relaxed) != 0 {
            return;
        }
        let place = self.order.reserved.fetch_add(1, Ordering::Relaxed) + 1;
        self.place.store(place, Ordering::Release);
    }
}

impl ResponseTurn for OrderedCompletion {
    fn reserve(&self) {
        OrderedCompletion::reserve(self);
    }
}

impl ResponseOrder {
    /// Passes on what is the next in order, and all that waited for it.
    fn deliver_in_order(&self, place: u64, held: HeldDelivery) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if place != waiting.left + 1 {
            waiting.deliveries.entry(place).or_default().push(held);
            return;
        }
        // Delivered under the lock: a delivery must not block, and outside it two threads could
        // overtake each other. Its own wake follows from its sender; those that waited for it get
        // theirs here, after the lock, as a wake may lead to the receiver's own code.
        let mut woken: SmallVec<[Arc<dyn Completion>; 4]> = SmallVec::new();
        let mut is_final = ends_place(&held);
        if let Some((completion, delivery)) = held {
            completion.deliver(delivery);
        }
        while is_final {
            waiting.left += 1;
            let next = waiting.left + 1;
            is_final = false;
            for held in waiting.deliveries.remove(&next).unwrap_or_default() {
                is_final |= ends_place(&held);
                if let Some((completion, delivery)) = held {
                    completion.deliver(delivery);
                    woken.push(completion);
                }
            }
        }
        drop(waiting);
        for completion in woken {
            completion.wake();
        }
    }
}

/// Whether nothing follows in this place: it is the final delivery, or the place was given up.
fn ends_place(held: &HeldDelivery) -> bool {
    held.as_ref()
        .is_none_or(|(_, delivery)| delivery.is_final())
}

impl Drop for OrderedCompletion {
    /// A request that is given up without an answer must not hold up the others for ever.
    fn drop(&mut self) {
        let place = *self.place.get_mut();
        if place != 0 && !*self.is_final.get_mut() {
            self.order.deliver_in_order(place, None);
        }
    }
}

impl Completion for OrderedCompletion {
    fn deliver(&self, delivery: Delivery) {
        if delivery.is_final() {
            self.is_final.store(true, Ordering::Relaxed);
        }
        match self.place.load(Ordering::Acquire) {
            0 => self.inner.deliver(delivery),
            place => self
                .order
                .deliver_in_order(place, Some((Arc::clone(&self.inner), delivery))),
        }
    }

    fn wake(&self) {
        self.inner.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Recorder(Mutex<Vec<(u64, bool)>>);

    impl Completion for Recorder {
        fn deliver(&self, delivery: Delivery) {
            self.0
                .lock()
                .unwrap()
                .push((delivery.slot(), delivery.is_final()));
        }

        fn wake(&self) {}
    }

    #[test]
    fn later_batches_wait_for_earlier_ones() {
        let recorder = Arc::new(Recorder::default());
        let completion: Arc<dyn Completion> = recorder.clone();
        let order = Arc::new(ResponseOrder::default());
        let mut turns: Vec<_> = (0..4)
            .map(|_| OrderedCompletion::new(&order, &completion))
            .collect();
        for index in [0, 1, 2] {
            turns[index].reserve();
        }
        // Slot (its index), whether final: as they are delivered, and as they shall leave.
        for (slot, is_final) in [
            (2, true),
            (1, false),
            (3, true),
            (1, true),
            (0, false),
            (0, true),
        ] {
            turns[slot as usize].deliver(Delivery::new(slot, None, is_final));
        }
        let left = [
            (3, true),
            (0, false),
            (0, true),
            (1, false),
            (1, true),
            (2, true),
        ];
        assert_eq!(
            *recorder.0.lock().unwrap(),
            left,
            "3 was never batched, 1 and 2 wait for 0"
        );

        // 0 is given up: 1 leaves when nobody has 0 any more.
        recorder.0.lock().unwrap().clear();
        turns = (0..2)
            .map(|_| OrderedCompletion::new(&order, &completion))
            .collect();
        turns.iter().for_each(|turn| turn.reserve());
        turns[1].deliver(Delivery::new(1, None, true));
        assert!(recorder.0.lock().unwrap().is_empty());
        drop(turns);
        assert_eq!(*recorder.0.lock().unwrap(), [(1, true)]);
    }

    #[test]
    fn who_is_batched_again_keeps_its_place() {
        let recorder = Arc::new(Recorder::default());
        let completion: Arc<dyn Completion> = recorder.clone();
        let order = Arc::new(ResponseOrder::default());
        let turns: Vec<_> = (0..2)
            .map(|_| OrderedCompletion::new(&order, &completion))
            .collect();
        for index in [0, 1, 0, 0] {
            turns[index].reserve();
        }
        for slot in [1, 0] {
            turns[slot as usize].deliver(Delivery::new(slot, None, true));
        }
        assert_eq!(*recorder.0.lock().unwrap(), [(0, true), (1, true)]);
    }
}
