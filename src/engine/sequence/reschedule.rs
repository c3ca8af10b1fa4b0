//! Requests of iterative sequences that go back to their scheduler.

use std::sync::Arc;

use crate::clock::monotonic_ns;
use crate::{OwnedRequest, SequenceFlags};

/// Gives a request of an iterative sequence back to its scheduler, to be run again. It neither
/// starts nor ends its sequence then. False for one that no scheduler gave out, as it warms an
/// instance up or fills a row: it is over, and its end is still to be told.
#[must_use]
pub fn reschedule(mut live: OwnedRequest) -> bool {
    let Some(return_guard) = live.return_guard.take() else {
        return false;
    };
    let core = return_guard.dismiss();
    live.sequence_flags = SequenceFlags::NONE;
    live.states = None;
    live.timestamps.queue_start_ns = monotonic_ns();
    let handle = live.requeue();
    let model = Arc::clone(&handle.shared().model);
    model.executor.reclaim(handle, core);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::synthetic::null;
    use crate::testing::admit;
    use crate::testing::{Recorder, draft, input, model};
    use crate::{Completion, Timestamps};

    #[test]
    fn what_no_scheduler_gave_out_is_not_run_again() {
        let version = model(
            "max_batch_size: 4 sequence_batching { iterative_sequence: true } input [ \
             { name: 'a' data_type: TYPE_INT8 dims: [ 1 ] } ] output [ \
             { name: 'x' data_type: TYPE_INT8 dims: [ 1 ] } ]",
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
