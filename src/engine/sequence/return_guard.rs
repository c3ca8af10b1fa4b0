//! Tells the sequence batcher that a request which it gave out has come back.

use std::fmt;
use std::sync::Arc;

use crate::clock::monotonic_ns;
use crate::{OwnedRequest, RequestHandle};

/// Held by a request that executes. Dropped with it, it tells the scheduler of its model; the
/// request then goes on to wait at the core that executed it, as no other can use the slot.
pub(crate) struct ReturnGuard {
    /// A cycle for as long as the request executes: whoever has it drops it, and with it this.
    handle: Option<RequestHandle>,
    core: usize,
}

impl ReturnGuard {
    pub(crate) fn new(handle: &RequestHandle, core: usize) -> ReturnGuard {
        ReturnGuard {
            handle: Some(Arc::clone(handle)),
            core,
        }
    }

    /// The request goes back to be run again, which tells more than its end would.
    fn slip(mut self) -> usize {
        self.handle = None;
        self.core
    }
}

/// Gives a request of an iterative sequence back to its scheduler, to be run again. It neither
/// starts nor ends its sequence then. False for one that no scheduler gave out, as it warms an
/// instance up or fills a row: it is over, and its end is still to be told.
#[must_use]
pub fn reschedule(mut live: OwnedRequest) -> bool {
    let Some(return_guard) = live.return_guard.take() else {
        return false;
    };
    let core = return_guard.slip();
    live.sequence_flags = 0;
    live.states = None;
    live.timestamps.queue_start_ns = monotonic_ns();
    let handle = live.requeue();
    if let Some(queue) = handle.shared().model.queue.get() {
        queue.take_back(Arc::clone(&handle), core);
    }
    true
}

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take()
            && let Some(queue) = handle.shared().model.queue.get()
        {
            queue.take_back(Arc::clone(&handle), self.core);
        }
    }
}

impl fmt::Debug for ReturnGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leash")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::admit;
    use crate::execution::synthetic::null;
    use crate::testing::{Recorder, draft, input, model};
    use crate::{Completion, Timestamps};

    #[test]
    fn what_no_scheduler_gave_out_is_not_run_again() {
        let version = model(
            "max_batch_size: 4 sequence_batching { iterative_sequence: true } input [ { name: 'a' data_type: TYPE_INT8 dims: [ 1 ] } ] output [ { name: 'x' data_type: TYPE_INT8 dims: [ 1 ] } ]",
        );
        let completion: Arc<dyn Completion> = Arc::new(Recorder::default());
        let inputs = vec![input("a", conch_config::DataType::Int8, &[1, 1], &[&[7]])];
        let handle = admit(
            &version,
            draft(inputs),
            &completion,
            0,
            Timestamps::default(),
        )
        .unwrap();
        let live = handle
            .claim(conch_sync::ClaimReason::Execute, None)
            .expect("nobody else wants it");
        assert!(!reschedule(null(&version, &live)));
    }
}
