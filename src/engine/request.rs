//! A request from draft to execution.
//!
//! [`Draft`] borrows from whatever the frontend parsed. `admit` checks it against the model and
//! makes a [`Request`], which lives in a `channel::Claim` beside its [`RequestContext`]: many
//! threads may hold the claim (a [`RequestHandle`]: the shard's timer, the scheduler's queue), but
//! only the one that wins the claim gets the request itself ([`OwnedRequest`]).

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use conch_config::DataType;
use conch_memory::{Budget, ByteView};
use conch_scheduler::{SchedulingParams, SequenceContext, SequenceKey};
use conch_sync::{Claim, Owned};
use smallvec::SmallVec;

use crate::cache::CacheInsert;
use crate::credits::Credits;
use crate::ensemble::{Execution, StepGuard};
use crate::limits::Tenant;
use crate::model::InFlightPermit;
use crate::observer::{ReleaseGuard, RequestObserver};
use crate::order::OrderedCompletion;
use crate::queue::PendingPermit;
use crate::regions::RequestRegions;
use crate::sequence::ReturnGuard;
use crate::states::SequenceStates;
use crate::stats::ExecutionSpan;
use crate::{Completion, ModelVersion};

/// Dimensions; up to six are stored in place.
pub type Shape = SmallVec<[i64; 6]>;

/// The shared handle of a request: to queue, cancel or expire it.
pub type RequestHandle = Arc<Claim<RequestContext, Request>>;

/// A handle that keeps nothing alive.
pub type WeakRequestHandle = std::sync::Weak<Claim<RequestContext, Request>>;

/// Exclusive possession of a request after winning its claim: to execute it or to answer it.
pub type OwnedRequest = Owned<RequestContext, Request>;

/// A sequence's id. The default, `Unsigned(0)`, means none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorrelationId {
    Unsigned(u64),
    Text(Box<str>),
}

impl Default for CorrelationId {
    fn default() -> CorrelationId {
        CorrelationId::Unsigned(0)
    }
}

impl CorrelationId {
    /// The sequence that a client means; none if it names none.
    pub(crate) fn sequence_key(&self) -> Option<SequenceKey> {
        match self {
            CorrelationId::Unsigned(0) => None,
            CorrelationId::Unsigned(number) => Some(SequenceKey::Unsigned(*number)),
            CorrelationId::Text(text) if text.is_empty() => None,
            CorrelationId::Text(text) => Some(SequenceKey::Text(text.clone())),
        }
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CorrelationId::Unsigned(number) => number.fmt(f),
            CorrelationId::Text(text) => text.fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    Text(Box<str>),
    Int(i64),
    Bool(bool),
    Double(f64),
}

/// A custom request or response parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: Box<str>,
    pub value: ParameterValue,
}

/// What a client asked for, as parsed: nothing is checked against the model yet. Names borrow from
/// the request's bytes.
#[derive(Debug, Default)]
pub struct Draft<'a> {
    pub id: &'a str,
    pub correlation_id: CorrelationId,
    /// Bits SEQUENCE_START (1) and SEQUENCE_END (2).
    pub sequence_flags: u32,
    /// 0: the model's default.
    pub priority: u64,
    pub timeout_us: u64,
    pub parameters: Vec<Parameter>,
    pub inputs: SmallVec<[DraftInput<'a>; 4]>,
    /// Empty: all outputs of the model.
    pub requested_outputs: SmallVec<[&'a str; 4]>,
    /// The single input is the raw body; its name, type and shape come from the model.
    pub is_raw: bool,
    /// A place among the model's live requests that the request has already, where models come when
    /// they are asked for.
    pub lease: Option<Box<InFlightPermit>>,
    /// Who sends it, where tenants' requests are bounded.
    pub tenant: Option<Tenant>,
    /// What its response is charged to; none: the process.
    pub budget: Option<Arc<Budget>>,
    /// Who asks, if within this process; told nothing unless the request is submitted.
    pub observer: Option<Arc<dyn RequestObserver>>,
    /// Bounds the responses on their way, where the model may send many and a slow reader may read
    /// them.
    pub credits: Option<Arc<Credits>>,
    /// It came on a stream: see [`RequestContext::takes_first`].
    pub takes_first: bool,
    /// The registered memory that its inputs lie in and its outputs are wanted in, if any.
    pub usage: Option<Arc<RequestRegions>>,
}

/// One input of a [`Draft`].
#[derive(Debug)]
pub struct DraftInput<'a> {
    pub name: &'a str,
    pub data_type: DataType,
    pub shape: Shape,
    /// The tensor's bytes in wire layout, in one or more pieces.
    pub chunks: SmallVec<[ByteView; 1]>,
}

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
    pub(crate) turn: Option<Arc<OrderedCompletion>>,
    /// The same object as `completion`, if the model has a cache.
    pub(crate) deposit: Option<Arc<CacheInsert>>,
    /// What became of it, if its model is an ensemble.
    pub(crate) run: OnceLock<Weak<Execution>>,
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

/// One input of a [`Request`], as the backend sees it.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: Arc<str>,
    pub data_type: DataType,
    /// After `reshape`, including the batch dimension of a batching model.
    pub shape: Shape,
    pub chunks: SmallVec<[ByteView; 1]>,
    pub byte_size: u64,
}

impl Input {
    /// Whether a client may still write to some of it.
    pub(crate) fn is_shared(&self) -> bool {
        self.chunks.iter().any(ByteView::is_shared)
    }
}

/// Monotonic clock readings, ns; 0 until reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timestamps {
    /// The request was admitted.
    pub request_start_ns: u64,
    /// It entered the model's queue.
    pub queue_start_ns: u64,
    /// Absolute client deadline, 0 for none.
    pub deadline_ns: u64,
}
