//! An instance that does not block, driven as if it did: one batch at a time, waited for.

use std::time::Duration;

use crate::backend::Instance;
use crate::clock::monotonic_ns;
use crate::execution::streams::stream_instance::StreamInstance;
use crate::model::stats::FailureReason;
use crate::request::refusal::refuse;
use crate::{Batch, Error, PendingResponses};

/// See the module.
pub(crate) struct WaitingInstance(pub(crate) StreamInstance);

impl Instance for WaitingInstance {
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        if !self.0.is_there() {
            let error = self.0.fault();
            for live in batch.drain(..) {
                refuse(live, FailureReason::Other, error.clone(), pending);
            }
            return;
        }
        self.0.enqueue(batch, pending);
        self.0.wait(pending);
    }
}

impl StreamInstance {
    /// Waits until nothing is in flight.
    pub(crate) fn wait(&mut self, pending: &mut PendingResponses) {
        loop {
            self.poll(pending);
            if self.in_flight() == 0 {
                return;
            }
            let now_ns = monotonic_ns();
            let look_ns = self.next_look_ns(now_ns);
            if look_ns > now_ns {
                std::thread::sleep(Duration::from_nanos(look_ns - now_ns));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Why it takes no batches.
    pub(crate) fn fault(&self) -> Error {
        let fault = self.queue().fault().cloned();
        fault.unwrap_or_else(|| Error::unavailable("the instance is out of service"))
    }
}
