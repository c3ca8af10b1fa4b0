//! Submits requests to the queue of their model.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use conch_config::Scheduling;
use conch_scheduler::{SchedulingParams, SequenceKey, rejection_ns};
use conch_sync::{NEVER_NS, Refused};

use crate::execution::queue::ModelQueue;
use crate::execution::refusal::{SubmitRefusal, stopping};
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::{Error, ModelVersion, RequestHandle};

impl ModelVersion {
    /// Puts an admitted request into the queue, where an idle core finds it, or answers it from the
    /// response cache: its completion may be called before this returns. Does not block.
    ///
    /// # Errors
    /// UNAVAILABLE once the model is stopping, or when the queue is full: the request is gone, and
    /// its completion is not called. Only the first is counted, as rejected.
    pub fn submit(&self, handle: RequestHandle) -> Result<(), Error> {
        let origin = handle.shared();
        request_log::note(&origin.id, RequestState::Initialized, RequestState::Pending);
        let member = self.cache.get();
        let submitted = match member.filter(|_| handle.shared().deposit.is_some()) {
            Some(member) => member.submit(self, handle),
            None => self.enqueue(handle),
        };
        submitted.map_err(|SubmitRefusal { error, live }| {
            if let Some(mut live) = live {
                let id = &live.shared().id;
                request_log::note(id, RequestState::Pending, RequestState::FailedEnqueue);
                live.hold.defuse();
            }
            error
        })
    }

    /// Whether the queue takes no more requests.
    pub fn is_closed(&self) -> bool {
        match self.queue.get() {
            Some(queue) => queue.is_stopping(),
            None => self.ensemble.get().is_none_or(|own| own.is_closed()),
        }
    }

    /// Puts a request into the queue that has its place there.
    pub(crate) fn enqueue(&self, handle: RequestHandle) -> Result<(), SubmitRefusal> {
        let rejection_ns = match &self.config.scheduling {
            Scheduling::Dynamic(settings) => rejection_ns(settings, &handle.shared().facts),
            // If it has to wait for a slot.
            Scheduling::Sequence(_) => match handle.shared().facts {
                SchedulingParams { timeout_us: 0, .. } => NEVER_NS,
                SchedulingParams {
                    queued_ns,
                    timeout_us,
                    ..
                } => queued_ns.saturating_add(timeout_us.saturating_mul(1_000)),
            },
            _ => NEVER_NS,
        };
        let member = handle.shared().member.as_ref();
        let started = member
            .filter(|member| member.is_start)
            .map(|member| member.key.clone());
        let refused = match self.queue.get() {
            Some(queue) if started.is_some() && queue.is_stopping() => handle,
            Some(queue) => match self.submit_to(queue, handle, started) {
                Ok(()) => {
                    // Every core may be executing for longer than that.
                    if rejection_ns != NEVER_NS {
                        queue.entrust(rejection_ns);
                    }
                    return Ok(());
                }
                Err(Refused::Closed(handle)) => handle,
                Err(Refused::Linked(_)) => {
                    return Err(SubmitRefusal {
                        error: Error::internal("the request is queued already"),
                        live: None,
                    });
                }
            },
            None => match self.ensemble.get() {
                Some(ensemble) => return ensemble.begin(handle),
                None => handle,
            },
        };
        Err(stopping(&refused))
    }

    /// Puts a request into the queue that starts the sequence `started`, or none.
    fn submit_to(
        &self,
        queue: &Arc<ModelQueue>,
        handle: RequestHandle,
        started: Option<SequenceKey>,
    ) -> Result<(), Refused<RequestHandle>> {
        let Some(key) = started else {
            return queue.submit(handle);
        };
        // It may go on in a version that this one took the place of.
        self.draining_versions.end(&key);
        queue.submit(handle)?;
        // Pairs with the fence of a hand-over: that has seen the request, or we see the table of
        // active sequences.
        fence(Ordering::SeqCst);
        if let Some(active_sequences) = queue.active_sequences.get() {
            active_sequences.note(key);
        }
        Ok(())
    }
}
