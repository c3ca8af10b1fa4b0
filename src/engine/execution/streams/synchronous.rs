//! An instance that keeps batches in flight, driven synchronously: one batch at a time, waited for.

use std::sync::Arc;

use crate::backend::Instance;
use crate::clock::monotonic_ns;
use crate::execution::streams::pause_until;
use crate::execution::streams::stream_instance::StreamInstance;
use crate::model::readiness::check::ReadinessCheck;
use crate::{Batch, PendingResponses};

/// For a core that executes one batch after the other: its model's scheduler, or the limiter of
/// executions, waits for the end of each.
pub(crate) struct SynchronousInstance(pub(crate) StreamInstance);

impl Instance for SynchronousInstance {
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        let SynchronousInstance(stream) = self;
        stream.enqueue(batch, pending);
        loop {
            stream.poll(pending);
            if stream.in_flight() == 0 {
                // The device is idle because this core waited, not because its depth is too small.
                stream.note_wait();
                return;
            }
            let now_ns = monotonic_ns();
            pause_until(stream.next_look_ns(now_ns), now_ns);
        }
    }

    fn readiness_check(&self) -> Option<Arc<dyn ReadinessCheck>> {
        self.0.readiness_check()
    }
}
