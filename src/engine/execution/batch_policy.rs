//! Shows queued requests to their model's own batching strategy.

use conch_scheduler::{BatchDecision, BatchPolicy};
use conch_sync::ClaimReason;

use crate::backend::BatchStrategy;
use crate::{OwnedRequest, RequestHandle};

/// The scheduler's side of a [`BatchStrategy`].
pub(crate) struct BatchStrategyAdapter(pub(crate) Box<dyn BatchStrategy>);

impl BatchPolicy<RequestHandle> for BatchStrategyAdapter {
    fn begin(&mut self) {
        self.0.begin();
    }

    /// The strategy reads the request as if it executed it, so that nobody answers and frees it
    /// meanwhile.
    fn includes(&mut self, handle: &RequestHandle) -> BatchDecision<OwnedRequest> {
        let Some(live) = conch_sync::Claim::claim(handle, ClaimReason::Execute, None) else {
            return BatchDecision::Gone;
        };
        let (live, joins) = self.0.includes(live);
        match live.put_back() {
            Some(live) => BatchDecision::Cancelled(live),
            None if joins => BatchDecision::Joins,
            None => BatchDecision::Stays,
        }
    }

    fn end(&mut self) {
        self.0.end();
    }
}
