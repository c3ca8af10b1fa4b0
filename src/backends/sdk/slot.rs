//! The state of one request of a batch.

use std::cell::{Cell, OnceCell};

use crate::TraceParent;
use crate::owned_response::OwnedResponse;

/// How far a request's answer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No final response was sent.
    #[default]
    Open,
    Sent,
    Failed,
    /// Its answers come from a response factory, which ends them.
    HandedOver,
    /// It is to be executed once more.
    Again,
}

/// What the SDK remembers of each request of a batch.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) outcome: Cell<Outcome>,
    /// A response with more to come was sent.
    pub(crate) has_partial: Cell<bool>,
    /// A response that was begun when the batch was enqueued.
    pub(crate) kept: Cell<Option<OwnedResponse>>,
    /// What other threads may make child traces of, until the request is released.
    pub(crate) trace_parent: OnceCell<TraceParent>,
}
