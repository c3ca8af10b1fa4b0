//! Submits requests to what executes them.

use crate::request::context::SubmitRefusal;
use crate::request::inline::InlineOffer;
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::{Error, ModelVersion, RequestHandle};

impl ModelVersion {
    /// Hands an admitted request to the version's queue, where an idle core finds it, to its
    /// ensemble, or answers it from the response cache: its completion may be called before this
    /// returns. Does not block. Whoever offers to execute looks at `offer` afterwards.
    ///
    /// # Errors
    /// UNAVAILABLE once the model is stopping, or when the queue is full: the request is gone, and
    /// its completion is not called. Only the first is counted, as rejected.
    pub fn submit(&self, handle: RequestHandle, offer: &mut InlineOffer) -> Result<(), Error> {
        let origin = handle.shared();
        request_log::log_change(&origin.id, RequestState::Initialized, RequestState::Pending);
        let submitted = self.executor.submit(handle, offer);
        submitted.map_err(|SubmitRefusal { error, live }| {
            if let Some(mut live) = live {
                let id = &live.shared().id;
                request_log::log_change(id, RequestState::Pending, RequestState::FailedEnqueue);
                live.hold.defuse();
            }
            error
        })
    }
}
