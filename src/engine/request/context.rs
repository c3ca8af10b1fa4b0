//! A request from draft to execution.
//!
//! [`Draft`] borrows from whatever the frontend parsed. `admit` checks it against the model and
//! makes a [`Request`], which lives in a `channel::Claim` beside its [`RequestContext`]: many
//! threads may hold the claim (a [`RequestHandle`]: the shard's timer, the scheduler's queue), but
//! only the one that wins the claim gets the request itself ([`OwnedRequest`]).

use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use conch_memory::Budget;
use conch_scheduler::{SchedulingParams, SequenceContext};
use conch_sync::{Claim, Owned};
use smallvec::SmallVec;

use crate::flow_control::credits::Credits;
use crate::model::pending_permit::PendingPermit;
use crate::model::stats::ExecutionSpan;
use crate::model::version::InFlightPermit;
use crate::request::ensemble_run::{EnsembleRun, StepGuard};
use crate::request::observer::{ReleaseGuard, RequestObserver};
use crate::request::response::ResponseTurn;
use crate::sequence::return_guard::ReturnGuard;
use crate::sequence::states::SequenceStates;
use crate::shared_memory::RequestRegions;
use crate::{Completion, ModelVersion};
use crate::{CorrelationId, Input, Parameter, Timestamps};

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
    /// What each response but the final one is paid with.
    pub credits: Option<Arc<Credits>>,
    /// If a one-to-one model sends several responses, the first is the answer and the others are
    /// dropped; else they are an error.
    pub takes_first: bool,
    /// Where outputs are wanted in registered memory, until the final response has left.
    pub usage: Option<Arc<RequestRegions>>,
    /// What its responses are charged to; none: the process.
    pub budget: Option<Arc<Budget>>,
    /// What the scheduler goes by.
    pub(crate) facts: SchedulingParams,
    /// Its part in its sequence, if its model has sequences.
    pub(crate) member: Option<Box<SequenceContext>>,
    /// In front of the receiver, under preserve-ordering.
    pub(crate) turn: Option<Arc<dyn ResponseTurn>>,
    /// The same object as `completion`, if the model has a cache.
    pub(crate) deposit: Option<Arc<dyn Any + Send + Sync>>,
    /// What became of it, if its model is an ensemble.
    pub(crate) run: OnceLock<Weak<dyn EnsembleRun>>,
}

/// An admitted request: shapes, types and sizes agree with the model.
pub struct Request {
    pub correlation_id: CorrelationId,
    pub sequence_flags: u32,
    /// Resolved against the model's levels; 0 without levels.
    pub priority: u64,
    pub timeout_us: u64,
    pub parameters: Vec<Parameter>,
    pub inputs: SmallVec<[Input; 4]>,
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

    /// Counts its execution by `model`, and in the figures of the ensemble that it is a step of.
    pub fn report_execution(&self, model: &ModelVersion, is_success: bool, span: &ExecutionSpan) {
        let count = u64::from(self.batch_count());
        model
            .statistics
            .report_request(is_success, &self.timestamps, count, span);
        if let Some(step) = self.step.as_ref().filter(|_| is_success) {
            step.note(span);
        }
    }

    /// Who asked, if within this process.
    pub fn observer(&self) -> Option<&Arc<dyn RequestObserver>> {
        self.hold.observer()
    }
}
