//! The course of a request through the cache: lookup before the queue, insertion before the
//! delivery.
//!
//! While nobody works on it, the request is claimable as in the queue: who cancels it, or its
//! deadline, need not wait for a plug-in.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use conch_sync::ClaimReason;

use crate::cache::service::{CachedExecutor, ModelCache};
use crate::cache::threads::CacheJob;
use crate::cache::{CacheKey, CacheService, CachedResponse, key};
use crate::clock::monotonic_ns;
use crate::model::stats::FailureReason;
use crate::request::context::{Executor, ExecutorUsage, ResponsePath, SubmitRefusal};
use crate::request::inline::InlineOffer;
use crate::request::instance_timeline::InstanceTimeline;
use crate::request::refusal::refuse;
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::request::trace::TraceActivity;
use crate::{
    Code, Completion, Delivery, Error, OwnedRequest, PendingPermit, PendingResponses,
    RequestHandle, Response,
};

/// Inputs of up to this many bytes are hashed on the thread that submits: at 10 GB/s some 25 us, a
/// twentieth of what a turn of a shard may take.
const HASHED_HERE_BYTES_MAX: usize = 256 << 10;

impl Executor for CachedExecutor {
    fn response_path(&self, completion: &Arc<dyn Completion>, may_cache: bool) -> ResponsePath {
        let inner = self.0.executor.response_path(completion, may_cache);
        if !may_cache {
            return inner;
        }
        let deposit = Arc::new(CacheInsert {
            inner: inner.completion,
            caching: Arc::clone(&self.0.caching),
            lookup: OnceLock::new(),
        });
        ResponsePath {
            completion: Arc::clone(&deposit) as _,
            turn: inner.turn,
            deposit: Some(deposit),
        }
    }

    fn submit(&self, handle: RequestHandle, offer: &mut InlineOffer) -> Result<(), SubmitRefusal> {
        match handle.shared().features.deposit {
            Some(_) => self.0.submit(handle, offer),
            None => self.0.executor.submit(handle, offer),
        }
    }

    fn is_closed(&self) -> bool {
        self.0.executor.is_closed()
    }

    fn fault(&self) -> Option<Error> {
        self.0.executor.fault()
    }

    fn usage(&self) -> ExecutorUsage {
        self.0.executor.usage()
    }

    fn timelines(&self) -> Vec<InstanceTimeline> {
        self.0.executor.timelines()
    }

    fn end_watch(&self) {
        self.0.executor.end_watch();
    }
}

impl ModelCache {
    /// Answers the request from the cache or lets it be executed, now or on a thread of the cache.
    /// Does not block.
    ///
    /// # Errors
    /// The executor's; a request that goes to a thread of the cache is answered with them instead.
    fn submit(
        self: &Arc<Self>,
        handle: RequestHandle,
        offer: &mut InlineOffer,
    ) -> Result<(), SubmitRefusal> {
        // A model that stops answers nothing more, though it could.
        let claimed =
            (!self.executor.is_closed()).then(|| handle.claim(ClaimReason::Execute, None));
        let Some(live) = claimed.flatten() else {
            return self.executor.submit(handle, offer);
        };
        let caching = &self.caching;
        if caching.cache.is_instant() && key::byte_count(&live) <= HASHED_HERE_BYTES_MAX {
            let Some(key) = key::key_of(&self.start, &live) else {
                return self.execute(live, offer);
            };
            let start_ns = monotonic_ns();
            if let Some(outcome) = caching.cache.try_lookup(key) {
                let lookup = CacheLookup::ended(key, start_ns);
                return self.answer_or_execute(live, lookup, outcome, offer);
            }
        }
        let Some(handle) = lay_down(live) else {
            return Ok(());
        };
        let (member, own) = (Arc::clone(self), Arc::clone(&handle));
        let job: CacheJob = Box::new(move || member.look_up(&own));
        if caching.threads.post(job).is_err() {
            // The server stops, and the model refuses it.
            return self.executor.submit(handle, offer);
        }
        Ok(())
    }

    /// The rest of [`ModelCache::submit`], on a thread of the cache. Nobody is there to return an
    /// error to: it is the request's answer.
    fn look_up(&self, handle: &RequestHandle) {
        let Some(live) = handle.claim(ClaimReason::Execute, None) else {
            return;
        };
        let Some(key) = key::key_of(&self.start, &live) else {
            return answer_refusal(handle, self.execute(live, &mut InlineOffer::none()));
        };
        let Some(handle) = lay_down(live) else {
            return;
        };
        let start_ns = monotonic_ns();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.caching.cache.lookup(key)))
            .unwrap_or_else(|_| Err(Error::internal("panic in the response cache")));
        let lookup = CacheLookup::ended(key, start_ns);
        if let Some(live) = handle.claim(ClaimReason::Execute, None) {
            let outcome = self.answer_or_execute(live, lookup, outcome, &mut InlineOffer::none());
            answer_refusal(&handle, outcome);
        }
    }

    fn answer_or_execute(
        &self,
        live: OwnedRequest,
        lookup: CacheLookup,
        outcome: Result<Option<Arc<CachedResponse>>, Error>,
        offer: &mut InlineOffer,
    ) -> Result<(), SubmitRefusal> {
        match outcome {
            Ok(Some(kept)) => {
                answer(live, &lookup, &kept);
                return Ok(());
            }
            Ok(None) => {}
            Err(error) => self.caching.log_limiter.tell(
                monotonic_ns(),
                format_args!(
                    "Failed to look up key [{}] in response cache: {}",
                    lookup.key, error.message
                ),
            ),
        }
        let deposit = live.shared().features.deposit.as_deref();
        if let Some(deposit) = deposit.and_then(|deposit| deposit.downcast_ref::<CacheInsert>()) {
            // A request that is scheduled anew is not looked up again, so this is its only lookup.
            deposit.lookup.get_or_init(|| lookup);
        }
        self.execute(live, offer)
    }

    /// Lets the request be executed, as any of a model without a cache.
    fn execute(
        &self,
        mut live: OwnedRequest,
        offer: &mut InlineOffer,
    ) -> Result<(), SubmitRefusal> {
        let version = Arc::clone(&live.shared().model);
        let place = PendingPermit::enter(&version, &live.shared().id, live.shared().facts.level);
        match place {
            Ok(place) => live.place = Some(place),
            Err(error) => {
                let live = Some(live);
                return Err(SubmitRefusal { error, live });
            }
        }
        match lay_down(live) {
            Some(handle) => self.executor.submit(handle, offer),
            None => Ok(()),
        }
    }
}

fn answer_refusal(handle: &RequestHandle, outcome: Result<(), SubmitRefusal>) {
    if let Err(SubmitRefusal { error, live }) = outcome {
        drop(live);
        deliver(handle, Err(error));
    }
}

/// Lets go of the request, so that it may be withdrawn or executed. None if it was cancelled
/// meanwhile: it has its answer.
fn lay_down(live: OwnedRequest) -> Option<RequestHandle> {
    let handle = Arc::clone(live.handle());
    let Some(live) = live.put_back() else {
        return Some(handle);
    };
    // Whoever cancelled was told that it is too late to withdraw it, and waits.
    let mut pending = PendingResponses::default();
    let error = Error::new(Code::Cancelled, "");
    refuse(live, FailureReason::Canceled, error, &mut pending);
    pending.flush();
    None
}

/// Answers with a response that is kept.
fn answer(live: OwnedRequest, lookup: &CacheLookup, kept: &CachedResponse) {
    let handle = Arc::clone(live.handle());
    let origin = handle.shared();
    origin
        .model
        .statistics
        .report_cache_hit(&live.timestamps, lookup.start_ns, lookup.duration_ns);
    if let Some(turn) = &origin.features.turn {
        // Under preserve-ordering it comes after what is executing now, as upstream has it.
        turn.reserve();
    }
    request_log::log_change(&origin.id, RequestState::Pending, RequestState::Released);
    let response = kept.to_response(&origin.model);
    if let Some(trace) = live.observer().and_then(|observer| observer.trace()) {
        // In a trace a kept answer shows as the one that a backend makes, as upstream has it.
        let budget = origin.features.budget.as_ref();
        trace.show_outputs(
            TraceActivity::TensorBackendOutput,
            &response.outputs,
            budget,
        );
    }
    // Its inputs and its places are free before the client can send another.
    drop(live);
    deliver(&handle, Ok(response));
}

fn deliver(handle: &RequestHandle, outcome: Result<Response, Error>) {
    let origin = handle.shared();
    origin
        .completion
        .deliver(origin.delivery(Some(outcome), true));
    origin.completion.wake();
}

/// A lookup that was made.
#[derive(Clone, Copy, Debug)]
struct CacheLookup {
    key: CacheKey,
    start_ns: u64,
    duration_ns: u64,
}

impl CacheLookup {
    fn ended(key: CacheKey, start_ns: u64) -> CacheLookup {
        CacheLookup {
            key,
            start_ns,
            duration_ns: monotonic_ns().saturating_sub(start_ns),
        }
    }
}

/// A completion that keeps the response of a request which the cache did not know, and then passes
/// it on to `inner`.
#[derive(Debug)]
pub(crate) struct CacheInsert {
    inner: Arc<dyn Completion>,
    caching: Arc<CacheService>,
    /// The lookup that missed. A response of the cache, or of a request that was not looked up,
    /// passes through.
    lookup: OnceLock<CacheLookup>,
}

impl Completion for CacheInsert {
    fn deliver(&self, delivery: Delivery) {
        let (Some(lookup), Delivery::Final { outcome: Ok(_), .. }) = (self.lookup.get(), &delivery)
        else {
            return self.inner.deliver(delivery);
        };
        if self.caching.cache.is_instant() {
            insert_response(&self.caching, lookup, &delivery);
            return self.inner.deliver(delivery);
        }
        // A core must not wait for a plug-in. The client does: its next request shall find this
        // response.
        let (inner, caching, lookup) =
            (Arc::clone(&self.inner), Arc::clone(&self.caching), *lookup);
        let delivery_guard = PendingDelivery {
            inner,
            delivery: Some(delivery),
        };
        let job: CacheJob = Box::new(move || {
            if let Some(delivery) = &delivery_guard.delivery {
                insert_response(&caching, &lookup, delivery);
            }
            drop(delivery_guard);
        });
        // Refused when the server stops: then the delivery guard is on its way already.
        let _ = self.caching.threads.post(job);
    }

    fn wake(&self) {
        self.inner.wake();
    }
}

/// A delivery that is made whatever becomes of the job that holds it.
struct PendingDelivery {
    inner: Arc<dyn Completion>,
    delivery: Option<Delivery>,
}

impl Drop for PendingDelivery {
    fn drop(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            self.inner.deliver(delivery);
            self.inner.wake();
        }
    }
}

/// Keeps a response and counts the miss that it was.
fn insert_response(caching: &CacheService, lookup: &CacheLookup, delivery: &Delivery) {
    let Some(Ok(response)) = delivery.outcome() else {
        return;
    };
    let start_ns = monotonic_ns();
    let outcome = caching.cache.insert(lookup.key, response);
    let insertion_ns = monotonic_ns().saturating_sub(start_ns);
    match outcome {
        Ok(()) => {}
        // The same request was executed twice at a time: upstream counts one miss.
        Err(error) if error.code == Code::AlreadyExists => return,
        Err(error) => caching.log_limiter.tell(
            monotonic_ns(),
            format_args!(
                "Failed to insert key [{}] into response cache: {}",
                lookup.key, error.message
            ),
        ),
    }
    response
        .model
        .statistics
        .report_cache_miss(lookup.duration_ns + insertion_ns);
}
