//! The way of a response from its backend to the receiver.

use std::ops::ControlFlow;
use std::sync::MutexGuard;

use conch_engine::flow_control::payment::Payment;
use conch_engine::{Credits, Error, RequestContext, Response, cancel};

use super::{BackendRequest, BackendResponse, RequestProgress, RequestSource};
use crate::host::execution;

impl BackendRequest {
    /// Takes one answer from the backend: a response, an error, or flags alone.
    pub(super) fn send(
        &self,
        outcome: Option<Result<Response, Error>>,
        is_final: bool,
        spare: Option<Box<BackendResponse>>,
    ) -> Result<(), Error> {
        let source = self.source()?;
        let origin = source.handle.shared();
        // Before the lock, as it may wait.
        let ControlFlow::Continue(paid_bytes) = pay(source, outcome.as_ref(), is_final) else {
            return Ok(());
        };
        let credits = origin.features.credits.as_ref();
        let outcome = match credits {
            Some(credits) if is_final && credits.is_overdrawn() => Some(Err(Credits::too_slow())),
            _ => outcome,
        };
        let mut progress = self.progress();
        if spare.is_some() {
            progress.spare = spare;
        }
        if let Err(error) = progress.lifecycle.respond(is_final) {
            drop(progress);
            if let (Some(credits), Some(bytes)) = (credits, paid_bytes) {
                credits.refund(bytes);
            }
            self.log_misuse("sent a response after the final one of its request");
            return Err(error.into());
        }
        self.free_model_if_over(&progress);
        progress.response_count += u64::from(outcome.is_some());
        if source.facts.is_decoupled || source.observer.is_some() {
            deliver(progress, origin, outcome, is_final);
            return Ok(());
        }
        self.store(progress, source, outcome, is_final)
    }

    /// Stores what a one-to-one model sent. The final response leaves with the request's release,
    /// or now if that has been or another thread executes the batch.
    fn store(
        &self,
        mut progress: MutexGuard<'_, RequestProgress>,
        source: &RequestSource,
        outcome: Option<Result<Response, Error>>,
        is_final: bool,
    ) -> Result<(), Error> {
        let takes_first = source.handle.shared().features.takes_first;
        if outcome.is_some() && !(takes_first && progress.stored.is_some()) {
            progress.stored = outcome;
        }
        if !is_final {
            return Ok(());
        }
        if progress.response_count != 1 {
            self.log_misuse("did not send exactly one response to a request");
        }
        if progress.response_count == 0 || (progress.response_count > 1 && !takes_first) {
            // Upstream's frontends say the same.
            progress.stored = Some(Err(Error::internal(format!(
                "expected a single response, got {}",
                progress.response_count
            ))));
        }
        let is_foreign = !execution::is_current(source.instance);
        if is_foreign || progress.lifecycle.has_ended() {
            let outcome = progress.stored.take();
            drop(progress);
            self.dispatch(outcome, true)?;
        }
        Ok(())
    }

    /// Sends an answer on its way: with the batch if this thread executes it, else at once.
    pub(super) fn dispatch(
        &self,
        outcome: Option<Result<Response, Error>>,
        is_final: bool,
    ) -> Result<(), Error> {
        let source = self.source()?;
        let origin = source.handle.shared();
        let delivery = origin.delivery(outcome, is_final);
        if let Some(delivery) = execution::defer(source.instance, origin, delivery) {
            origin.completion.deliver(delivery);
            origin.completion.wake();
        }
        Ok(())
    }
}

/// Pays for a response that is not the final one, from the request's credits. Breaks if the
/// receiver does not get it; continues with what was paid.
fn pay(
    source: &RequestSource,
    outcome: Option<&Result<Response, Error>>,
    is_final: bool,
) -> ControlFlow<(), Option<u64>> {
    let (Some(credits), Some(outcome), false) =
        (&source.handle.shared().features.credits, outcome, is_final)
    else {
        return ControlFlow::Continue(None);
    };
    let bytes = outcome.as_ref().map_or(0, Response::byte_size);
    match credits.pay(bytes) {
        Payment::Made => ControlFlow::Continue(Some(bytes)),
        Payment::Refused => {
            // The backend can see it from now on; what it still sends is dropped.
            cancel(&source.handle).deliver();
            ControlFlow::Break(())
        }
        Payment::Unwanted => ControlFlow::Break(()),
    }
}

/// Delivers under the lock, so that responses of several threads arrive in the order in which they
/// were counted. The wake is not: it may lead to code of the receiver's.
fn deliver(
    progress: MutexGuard<'_, RequestProgress>,
    origin: &RequestContext,
    outcome: Option<Result<Response, Error>>,
    is_final: bool,
) {
    origin
        .completion
        .deliver(origin.delivery(outcome, is_final));
    drop(progress);
    origin.completion.wake();
}
