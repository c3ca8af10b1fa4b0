//! A request from draft to execution, and the trait of what executes it.
//!
//! [`crate::Draft`] borrows from whatever the frontend parsed. `admit` checks it against the model
//! and makes a [`Request`], which lives in a [`conch_sync::Claim`] beside its [`RequestContext`]:
//! many threads may hold the claim (a [`RequestHandle`]: the shard's timer, the scheduler's queue),
//! but only the one that wins the claim gets the request itself ([`OwnedRequest`]).
//!
//! A request refers to its model version, the version to its [`Executor`], which takes requests,
//! and a response to its version: `context`, `version` and `response` import one another.

use std::any::Any;
use std::sync::{Arc, Mutex};

use conch_scheduler::{SchedulingParams, SequenceContext, SlotUsage};
use conch_sync::{Claim, Owned};
use smallvec::SmallVec;

use crate::model::states::SequenceStates;
use crate::model::stats::ExecutionSpan;
use crate::model::version::{InFlightPermit, PendingPermit, Rejected};
use crate::request::ensemble_run::StepGuard;
use crate::request::features::RequestFeatures;
use crate::request::inline::InlineOffer;
use crate::request::instance_timeline::InstanceTimeline;
use crate::request::observer::{ReleaseGuard, RequestObserver};
use crate::request::response_turn::ResponseTurn;
use crate::{
    Completion, CorrelationId, Delivery, Error, ModelVersion, Parameter, RequestInputs, Response,
    SequenceFlags, Timestamps,
};

/// The shared handle of a request: to queue, cancel or expire it.
pub type RequestHandle = Arc<Claim<RequestContext, Request>>;

/// A handle that keeps nothing alive.
pub type WeakRequestHandle = std::sync::Weak<Claim<RequestContext, Request>>;

/// Exclusive possession of a request after winning its claim: to execute it or to answer it.
pub type OwnedRequest = Owned<RequestContext, Request>;

/// The part of a request that everyone with its handle may read: where the answer goes, and what it
/// concerns. Made by `admit`.
pub struct RequestContext {
    /// The model, and the request's place among its live requests: a handle that is cancelled but
    /// still queued counts.
    pub model: InFlightPermit,
    pub id: Box<str>,
    pub completion: Arc<dyn Completion>,
    /// The completion's own name for the request.
    pub slot: u64,
    /// None of the data plane's business, but for the files of each feature.
    pub features: RequestFeatures,
    /// What the scheduler goes by.
    pub(crate) facts: SchedulingParams,
    /// Its part in its sequence, if its model has sequences.
    pub(crate) member: Option<Box<SequenceContext>>,
}

impl RequestContext {
    /// What is sent of it now; the way of every answer that counts.
    #[inline]
    pub fn delivery(&self, outcome: Option<Result<Response, Error>>, is_final: bool) -> Delivery {
        if let Some(outcome) = &outcome {
            self.note_response();
            if let (Some(stages), Err(error)) = (&self.features.stages, outcome) {
                stages.note_failure(error.code);
            }
        }
        Delivery::new(self.slot, outcome, is_final)
    }

    /// A response or an error is on its way.
    #[inline]
    pub(crate) fn note_response(&self) {
        if let Some(duration_ns) = self.features.first_response.note() {
            self.model.statistics.report_first_response(duration_ns);
        }
    }
}

/// An admitted request: shapes, types and sizes agree with the model.
pub struct Request {
    pub correlation_id: CorrelationId,
    pub sequence_flags: SequenceFlags,
    /// Resolved against the model's levels; 0 without levels.
    pub priority: u64,
    pub timeout_us: u64,
    pub parameters: Vec<Parameter>,
    pub inputs: RequestInputs,
    /// Indices into the model's configured outputs, ordered by name as upstream orders them; empty
    /// means all of them.
    pub requested_outputs: SmallVec<[u16; 4]>,
    /// Leading dimension of the inputs on a batching model, 0 on a model without batching (it
    /// counts as 1).
    pub batch_size: u32,
    pub timestamps: Timestamps,
    /// Those of its sequence, if its model has implicit states and its scheduler attached them.
    pub states: Option<Arc<Mutex<SequenceStates>>>,
    /// It only fills an empty place of a batch: it wants no output, and nothing of it is counted.
    pub is_null: bool,
    /// While it executes, if its scheduler wants to know when it comes back.
    pub(crate) return_guard: Option<ReturnGuard>,
    /// Its place among the waiting; none before the cache was asked, and once it is in a batch.
    pub(crate) place: Option<PendingPermit>,
    /// If it is a step of an ensemble's request.
    pub(crate) step: Option<StepGuard>,
    /// Last: dropped when nothing of the request is referenced any more.
    pub(crate) hold: ReleaseGuard,
}

impl Request {
    /// How many inferences this request counts as: never 0.
    pub fn batch_count(&self) -> u32 {
        self.batch_size.max(1)
    }

    /// Counts its execution by `model`, on that device if it is a GPU, and in the figures of the
    /// ensemble that it is a step of.
    pub fn report_execution(
        &self,
        model: &ModelVersion,
        device_id: Option<i32>,
        is_success: bool,
        span: &ExecutionSpan,
    ) {
        let count = u64::from(self.batch_count());
        let statistics = &model.statistics;
        statistics.report_request(device_id, is_success, &self.timestamps, count, span);
        if let Some(step) = self.step.as_ref().filter(|_| is_success) {
            step.add_span(span);
        }
    }

    /// Tells the scheduler of a sequence and the ensemble around that the request is over, although
    /// it is never dropped: a device that does not answer may still use its memory. Once.
    pub fn abandon(&self) {
        if let Some(return_guard) = &self.return_guard {
            return_guard.bring_back();
        }
        if let Some(step) = &self.step {
            step.abandon();
        }
    }

    /// Who asked, if within this process.
    pub fn observer(&self) -> Option<&Arc<dyn RequestObserver>> {
        self.hold.observer()
    }
}

/// What executes the requests of a model version: its queue with the cores that drive it, or an
/// ensemble; either may stand behind a response cache. No method blocks.
pub trait Executor: Send + Sync {
    /// What stands between the request and its receiver, `completion`. `may_cache` is false for a
    /// request whose response no cache may keep.
    fn response_path(&self, completion: &Arc<dyn Completion>, may_cache: bool) -> ResponsePath {
        let _ = may_cache;
        ResponsePath::direct(completion)
    }

    /// A permit of the version where the sequence with this id is under way, if that is one whose
    /// place this one took. `version` is what was asked for.
    fn draining_permit(
        &self,
        version: Option<i64>,
        id: &CorrelationId,
        flags: SequenceFlags,
    ) -> Option<Result<InFlightPermit, Rejected>> {
        let _ = (version, id, flags);
        None
    }

    /// Takes an admitted request. Its completion may be called before this returns. If it takes the
    /// `offer` to execute, nobody else may see to the request.
    ///
    /// # Errors
    /// UNAVAILABLE once it is closed or where the queue is full.
    fn submit(&self, handle: RequestHandle, offer: &mut InlineOffer) -> Result<(), SubmitRefusal>;

    /// Whether it takes no more requests, or none that start anything.
    fn is_closed(&self) -> bool;

    /// Why its model does not serve any more, if a device does not answer.
    fn fault(&self) -> Option<Error> {
        None
    }

    /// Who executes now, as far as it is known.
    fn usage(&self) -> ExecutorUsage {
        ExecutorUsage::default()
    }

    /// What its instances did in the last second, which are watched from then on. Read by one
    /// thread.
    fn timelines(&self) -> Vec<InstanceTimeline> {
        Vec::new()
    }

    /// Nobody watches them any more.
    fn end_watch(&self) {}

    /// How many sequences take requests; none if that cannot be seen right now.
    fn sequence_count(&self) -> Option<usize> {
        Some(0)
    }

    /// A queued request of a sequence was cancelled: the scheduler decides what that means.
    fn report_cancel(&self, handle: RequestHandle) {
        let _ = handle;
    }

    /// A request that core `core` executed is done with, or is to be run again.
    fn reclaim(&self, handle: RequestHandle, core: usize) {
        let _ = (handle, core);
    }
}

/// Who executes the requests of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorUsage {
    /// None of an ensemble.
    pub instances: InstanceUsage,
    /// Of a model with sequences.
    pub slots: Option<SlotUsage>,
}

/// How many instances there are, and how many of them execute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceUsage {
    pub count: usize,
    pub busy_count: usize,
}

/// What stands between a request and its receiver.
pub struct ResponsePath {
    /// The first that takes the request's deliveries.
    pub(crate) completion: Arc<dyn Completion>,
    /// Part of it under preserve-ordering.
    pub(crate) turn: Option<Arc<dyn ResponseTurn>>,
    /// Part of it if a cache is to be asked.
    pub(crate) deposit: Option<Arc<dyn Any + Send + Sync>>,
}

impl ResponsePath {
    /// Nothing.
    pub(crate) fn direct(completion: &Arc<dyn Completion>) -> ResponsePath {
        ResponsePath {
            completion: Arc::clone(completion),
            turn: None,
            deposit: None,
        }
    }
}

/// What an executor did not take. The request is there unless somebody else has claimed it.
pub struct SubmitRefusal {
    pub(crate) error: Error,
    pub(crate) live: Option<OwnedRequest>,
}

/// Held by a request of a sequence that executes. Dropped with it, it tells the scheduler of its
/// model; the request then goes on to wait at the core that executed it, as no other can use the
/// slot.
pub(crate) struct ReturnGuard {
    /// A cycle for as long as the request executes: whoever has it drops it, and with it this.
    handle: Option<RequestHandle>,
    core: usize,
}

impl ReturnGuard {
    pub(crate) fn new(handle: &RequestHandle, core: usize) -> ReturnGuard {
        ReturnGuard {
            handle: Some(Arc::clone(handle)),
            core,
        }
    }

    /// The request goes back to be run again, which tells more than its end would.
    pub(crate) fn dismiss(mut self) -> usize {
        self.handle = None;
        self.core
    }

    fn bring_back(&self) {
        if let Some(handle) = &self.handle {
            let executor = &handle.shared().model.executor;
            executor.reclaim(Arc::clone(handle), self.core);
        }
    }
}

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        self.bring_back();
    }
}

impl std::fmt::Debug for ReturnGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReturnGuard")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}
