//! The right to answer a request on loan.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use conch_engine::{Error, Response};

use super::BackendRequest;
use crate::host::answer::BackendResponse;

/// The right to answer a request: held by each response and each response factory.
pub(crate) struct ResponseSender {
    request: Arc<BackendRequest>,
}

impl ResponseSender {
    pub(crate) fn new(request: Arc<BackendRequest>) -> ResponseSender {
        // Relaxed: the lock of `reply` orders the count against the release.
        request.sender_count.fetch_add(1, Ordering::Relaxed);
        ResponseSender { request }
    }

    pub(crate) fn another(&self) -> ResponseSender {
        ResponseSender::new(Arc::clone(&self.request))
    }

    pub(crate) fn request(&self) -> &Arc<BackendRequest> {
        &self.request
    }

    /// Sends a response, an error, or (none) flags alone. `spare` is kept for the request's next
    /// response, or the loan's next request.
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
        if self.request.sender_count.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let mut reply = self.request.reply();
        if reply.is_released && !reply.is_final && !reply.is_rescheduled {
            let error = self.request.give_up(&mut reply, None);
            drop(reply);
            // The loan is lent while a sender exists, which is the only thing that can fail here.
            let _ = self.request.leave(Some(Err(error)), true);
        }
    }
}
