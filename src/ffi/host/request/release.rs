//! The end of a backend request: the backend releases it, gives it back to be run again, or fails
//! to execute it.

use conch_engine::clock::monotonic_ns;
use conch_engine::model::stats::FailureReason;
use conch_engine::request::request_log;
use conch_engine::request::request_log::RequestState;
use conch_engine::{Error, OwnedRequest, PendingResponses, Request, RequestContext, reschedule};

use super::lifecycle::{FinalResponse, LifecycleError};
use super::{BackendRequest, RequestProgress};

impl BackendRequest {
    /// The backend gives the request back. The caller drops the backend's `Arc` afterwards.
    ///
    /// # Errors
    /// INVALID_ARG if it did so before.
    pub(crate) fn release(&self) -> Result<(), Error> {
        let mut progress = self.progress();
        let response = match progress.lifecycle.release() {
            Ok(response) => response,
            Err(error) => {
                drop(progress);
                return Err(self.refuse_release(error));
            }
        };
        // SAFETY: the backend gave up its use of the request with this call, and only the first
        // release gets here.
        let live = unsafe { self.take_request() };
        let outcome = match response {
            FinalResponse::Sent => progress.stored.take(),
            FinalResponse::Owed => None,
            FinalResponse::Missing => Some(Err(self.fail_unanswered(&mut progress, Some(&live)))),
        };
        self.free_model_if_over(&progress);
        drop(progress);
        self.log_release(&live);
        // First the place in the model's queue and the inputs, then the answer: a client that
        // reacts to it finds them free.
        drop(live);
        if let Some(outcome) = outcome {
            self.dispatch(Some(outcome), true)?;
        }
        Ok(())
    }

    /// The backend gives the request back to be run again. One that nobody sent is over instead: it
    /// warms an instance up, or fills a row. The caller drops the backend's `Arc` afterwards.
    ///
    /// # Errors
    /// INVALID_ARG if it gave it back before, or sent its final response.
    pub(crate) fn reschedule(&self) -> Result<(), Error> {
        let mut progress = self.progress();
        if let Err(error) = progress.lifecycle.reschedule() {
            drop(progress);
            return Err(match error {
                LifecycleError::Answered => {
                    Error::invalid("a request that has its final response cannot be rescheduled")
                }
                error => self.refuse_release(error),
            });
        }
        // SAFETY: as in `release`.
        let live = unsafe { self.take_request() };
        drop(progress);
        if reschedule(live) || !self.progress().lifecycle.end_rescheduled() {
            return Ok(());
        }
        self.dispatch(None, true)
    }

    /// Answers with the error of a failed Execute, unless the backend gave the request back or
    /// answered it before it failed. Returns whether the backend still held the request.
    pub(crate) fn recall(&self, error: &Error, pending: &mut PendingResponses) -> bool {
        let mut progress = self.progress();
        let Ok(response) = progress.lifecycle.recall() else {
            return false;
        };
        // SAFETY: ownership returned with the error, so the backend does not use the request any
        // more.
        let live = unsafe { self.take_request() };
        // An answer that a foreign thread sent is gone already; one that is only stored gives way
        // to the error.
        let is_answered = response == FinalResponse::Sent && progress.stored.take().is_none();
        let is_reported = std::mem::replace(&mut progress.is_reported, true);
        self.free_model_if_over(&progress);
        drop(progress);
        self.log_release(&live);
        if let Ok(origin) = self.origin() {
            if !is_reported {
                report_failure(origin, &live);
            }
            if !is_answered {
                pending.push(origin, Some(Err(error.clone())), true);
            }
        }
        drop(live);
        true
    }

    /// Answers with `error` in the place of a backend whose device does not answer, unless the
    /// backend gave the request back or answered it before. The request stays with its memory,
    /// which the device may still use; what the backend still does with it is refused.
    pub(crate) fn abandon(&self, error: &Error, pending: &mut PendingResponses) {
        let mut progress = self.progress();
        let Ok(response) = progress.lifecycle.recall() else {
            return;
        };
        let is_answered = response == FinalResponse::Sent && progress.stored.take().is_none();
        let is_reported = std::mem::replace(&mut progress.is_reported, true);
        drop(progress);
        let Ok(origin) = self.origin() else { return };
        // SAFETY: nobody takes the request out any more: it has left the states in which its
        // backend can release it.
        if let Ok(request) = unsafe { self.request() } {
            if !is_reported {
                report_failure(origin, request);
            }
            request.abandon();
        }
        // Whoever unloads the model does not wait for it.
        origin.model.free();
        if !is_answered {
            pending.push(origin, Some(Err(error.clone())), true);
        }
    }

    /// Takes the request out.
    ///
    /// # Safety
    /// The backend request has just left the states in which the backend holds the request, so that
    /// nobody else reads it.
    unsafe fn take_request(&self) -> OwnedRequest {
        // SAFETY: by this function's contract.
        let live = unsafe { (*self.live.get()).take() };
        live.expect("a request that the backend holds is there")
    }

    fn refuse_release(&self, error: LifecycleError) -> Error {
        if error == LifecycleError::Released {
            self.log_misuse("released a request twice");
        }
        error.into()
    }

    fn log_release(&self, live: &OwnedRequest) {
        if let Ok(origin) = self.origin()
            && !live.is_null
        {
            request_log::log_change(&origin.id, RequestState::Executing, RequestState::Released);
        }
    }

    /// Ends the request's count among the live ones of its model, if it is over. Otherwise the last
    /// reference would; but there are backends that never delete a response factory.
    pub(super) fn free_model_if_over(&self, progress: &RequestProgress) {
        if progress.lifecycle.is_over_before_its_senders()
            && let Ok(origin) = self.origin()
        {
            origin.model.free();
        }
    }

    /// The error of a request whose final response is missing. Counts its failure if `live` is
    /// there.
    pub(super) fn fail_unanswered(
        &self,
        progress: &mut RequestProgress,
        live: Option<&OwnedRequest>,
    ) -> Error {
        progress.stored = None;
        if let (Ok(origin), Some(live), false) = (self.origin(), live, progress.is_reported) {
            progress.is_reported = true;
            report_failure(origin, live);
        }
        self.log_misuse("released a request without a final response");
        let backend = self
            .facts()
            .map(|facts| facts.backend.clone())
            .unwrap_or_default();
        Error::internal(format!(
            "backend '{backend}' released the request without a final response"
        ))
    }
}

fn report_failure(origin: &RequestContext, request: &Request) {
    if request.is_null {
        return;
    }
    let duration_ns = monotonic_ns().saturating_sub(request.timestamps.request_start_ns);
    origin
        .model
        .statistics
        .report_failure(FailureReason::Backend, duration_ns);
}
