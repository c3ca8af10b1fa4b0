//! Requests of a shard: from a draft to the engine.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::gpus::GpuHost;
use conch_engine::model::registry::Snapshot;
use conch_engine::{
    Draft, Error, INLINE_BYTES_MAX, InlineOffer, ModelVersion, RequestHandle, RequestPermits,
    RequestTarget, Tenant, Timestamps, clock,
};

use super::in_flight::ResponseQueue;
use super::response::{ResponseFuture, StreamRequest};
use super::runtime::Timer;
use super::state::Shard;

/// How a request goes into the engine, beside what it says.
#[derive(Default)]
pub struct SubmitOptions {
    /// What was asked for when the model was found: if that has been taken out of service
    /// meanwhile, the request goes to its successor.
    pub version: Option<i64>,
    /// Who sends it, where tenants' requests are bounded.
    pub tenant: Option<Tenant>,
    /// What was taken for it before: where models come when they are asked for, and under limits.
    pub permits: RequestPermits,
    /// The client's own deadline (monotonic): past it the request is withdrawn and the reply is
    /// CANCELLED.
    pub deadline_ns: Option<u64>,
}

impl Shard {
    /// The model version asked for (`None`: the highest ready one), or upstream's refusal. Does not
    /// block.
    pub fn find(&self, name: &str, version: Option<i64>) -> Result<Arc<ModelVersion>, Error> {
        self.reader
            .borrow_mut()
            .load()
            .find(name, version)
            .map(Arc::clone)
    }

    /// The models, if this host has GPUs.
    pub(crate) fn models_on_gpus(&self) -> Option<Arc<Snapshot>> {
        GpuHost::is_in_use().then(|| Arc::clone(self.reader.borrow_mut().load()))
    }

    /// Checks `draft` against the model and puts it into the model's queue. Does not block.
    ///
    /// # Errors
    /// Whatever admission refuses; UNAVAILABLE if the shard has too many requests in flight or the
    /// model's queue is full.
    pub fn infer(
        self: &Rc<Self>,
        model: &Arc<ModelVersion>,
        draft: &mut Draft<'_>,
        options: SubmitOptions,
    ) -> Result<ResponseFuture, Error> {
        let deadline_ns = options.deadline_ns;
        let (slot, handle) = self.begin(model, draft, options, None)?;
        Ok(ResponseFuture::new(
            self,
            slot,
            handle,
            deadline_ns.map(Timer::at),
        ))
    }

    /// [`Shard::infer`] for streams: whatever is delivered for the request goes to `responses`, and
    /// the caller sees to its deadline.
    ///
    /// # Errors
    /// As [`Shard::infer`].
    pub fn infer_into(
        self: &Rc<Self>,
        responses: &Rc<ResponseQueue>,
        model: &Arc<ModelVersion>,
        draft: &mut Draft<'_>,
        options: SubmitOptions,
    ) -> Result<StreamRequest, Error> {
        let (slot, handle) = self.begin(model, draft, options, Some(Rc::clone(responses)))?;
        Ok(StreamRequest::new(self, slot, handle))
    }

    fn begin(
        self: &Rc<Self>,
        model: &Arc<ModelVersion>,
        draft: &mut Draft<'_>,
        options: SubmitOptions,
        responses: Option<Rc<ResponseQueue>>,
    ) -> Result<(u64, RequestHandle), Error> {
        let SubmitOptions {
            version,
            tenant,
            permits,
            deadline_ns,
        } = options;
        let target = RequestTarget {
            model,
            version,
            id: draft.id,
            tenant,
            correlation_id: &draft.correlation_id,
            sequence_flags: draft.sequence_flags,
            keeps_kind: true,
        };
        let engine = self.server.engine();
        let permit = engine.enter(target, permits)?;
        let slot = self
            .in_flight
            .borrow_mut()
            .reserve(responses)
            .ok_or_else(|| {
                self.metrics.note_overflow();
                Error::unavailable("the server has too many requests in flight")
            })?;
        let timestamps = Timestamps {
            request_start_ns: clock::monotonic_ns(),
            queue_start_ns: 0,
            deadline_ns: deadline_ns.unwrap_or(0),
        };
        // Its deadline would come while the shard executes or waits.
        let may_wait = deadline_ns.is_none();
        let is_courteous = self.yield_policy.wish();
        let is_awaited = self.brief_wait.expect_reply(may_wait && self.is_alone(1));
        if is_courteous || is_awaited {
            self.look_at_end_of_turn();
        }
        let mut byte_count = 0usize;
        for chunk in draft.inputs.iter().flat_map(|input| &input.chunks) {
            chunk.mark_complete();
            byte_count = byte_count.saturating_add(chunk.len());
        }
        // Others that wait are likely to follow at once.
        let wakes_later = self.owed_wakes.take_let_in() && self.admission.has_any();
        let mut offer = match wakes_later {
            true => InlineOffer::of_later_wake(),
            false => self.offer_execution(may_wait, byte_count),
        };
        let submitted = engine.submit(
            permit,
            draft,
            &self.completion,
            slot,
            timestamps,
            &mut offer,
        );
        match offer.into_turn() {
            turn if wakes_later => {
                self.owed_wakes.owe(turn);
                self.look_at_end_of_turn();
            }
            Some(turn) => {
                self.owed_executions.owe(turn);
                self.look_at_end_of_turn();
            }
            None => {}
        }
        if submitted.is_err() {
            self.in_flight.borrow_mut().release(slot);
        }
        Ok((slot, submitted?))
    }

    /// Offers to execute the request that is submitted next, with `byte_count` bytes of inputs, if
    /// the shard `may_wait`.
    fn offer_execution(&self, may_wait: bool, byte_count: usize) -> InlineOffer {
        match self.in_flight.borrow().len() {
            _ if !may_wait => InlineOffer::none(),
            1 => InlineOffer::new(byte_count <= INLINE_BYTES_MAX),
            _ if self.owed_executions.shares_cpu() => InlineOffer::of_short_execution(byte_count),
            _ => InlineOffer::of_brief_execution(byte_count),
        }
    }

    /// Who sends a request, by the header that says so; none where nobody wants to know. `find`
    /// finds a header's value.
    pub fn tenant<'a>(&self, find: impl FnOnce(&str) -> Option<&'a [u8]>) -> Option<Tenant> {
        let limits = self.server.engine().limits()?;
        let header = self.options.tenant_header.as_deref()?;
        limits.tenant(find(header).unwrap_or_default())
    }
}
