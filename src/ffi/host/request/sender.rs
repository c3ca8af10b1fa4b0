//! The right to answer a request that a backend holds.

use std::sync::Arc;

use conch_engine::{Error, Response};

use super::{BackendRequest, BackendResponse};

/// The right to answer a request: held by each response and each response factory.
pub(crate) struct ResponseSender {
    request: Arc<BackendRequest>,
}

impl ResponseSender {
    /// # Errors
    /// INVALID_ARG unless the request is lent to a backend that executes it.
    pub(crate) fn open(request: Arc<BackendRequest>) -> Result<ResponseSender, Error> {
        request.progress().lifecycle.open_sender()?;
        Ok(ResponseSender { request })
    }

    /// As [`ResponseSender::open`], with memory of an earlier response, if there is any.
    pub(super) fn open_for_response(
        request: Arc<BackendRequest>,
    ) -> Result<(ResponseSender, Option<Box<BackendResponse>>), Error> {
        let mut progress = request.progress();
        progress.lifecycle.open_sender()?;
        let spare = progress.spare.take();
        drop(progress);
        Ok((ResponseSender { request }, spare))
    }

    pub(crate) fn request(&self) -> &Arc<BackendRequest> {
        &self.request
    }

    /// Sends a response, an error, or (none) flags alone. `spare` is kept for the request's next
    /// response, or the next request.
    ///
    /// # Errors
    /// INVALID_ARG after the final answer.
    pub(crate) fn send(
        &self,
        outcome: Option<Result<Response, Error>>,
        is_final: bool,
        spare: Option<Box<BackendResponse>>,
    ) -> Result<(), Error> {
        self.request.send(outcome, is_final, spare)
    }
}

impl Drop for ResponseSender {
    fn drop(&mut self) {
        let mut progress = self.request.progress();
        if progress.lifecycle.close_sender() {
            let error = self.request.fail_unanswered(&mut progress, None);
            drop(progress);
            // The backend holds the request while a sender exists, which is the only thing that can
            // fail here.
            let _ = self.request.dispatch(Some(Err(error)), true);
        }
    }
}
