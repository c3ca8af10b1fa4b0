//! The way back: responses, and the trait through which they reach the receiver.
//!
//! A response keeps its version: see [`crate::model::version`] for why they import one another.

use crate::Output;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Error;
use crate::model::version::ModelVersion;
use crate::request::parameter::Parameter;

/// One answer of a model to a request. It is passed on some twenty times on its way, so what it
/// says is boxed.
#[derive(Clone, Debug)]
pub struct Response {
    parts: Box<ResponseParts>,
}

/// What a [`Response`] says.
#[derive(Clone, Debug)]
pub struct ResponseParts {
    pub model: Arc<ModelVersion>,
    pub outputs: SmallVec<[Output; 2]>,
    pub parameters: Vec<Parameter>,
}

impl Deref for Response {
    type Target = ResponseParts;

    #[inline]
    fn deref(&self) -> &ResponseParts {
        &self.parts
    }
}

impl DerefMut for Response {
    #[inline]
    fn deref_mut(&mut self) -> &mut ResponseParts {
        &mut self.parts
    }
}

impl From<ResponseParts> for Response {
    #[inline]
    fn from(parts: ResponseParts) -> Response {
        Response {
            parts: Box::new(parts),
        }
    }
}

impl Response {
    /// Bytes of its outputs that are left to be sent: those in memory of clients are where they are
    /// wanted.
    pub fn byte_size(&self) -> u64 {
        self.outputs
            .iter()
            .filter(|output| !output.data.is_shared() || output.data.is_lent())
            .map(|output| output.data.len() as u64)
            .sum()
    }
}

/// What a completion receives for the request with [`RequestContext::slot`] `slot`.
#[derive(Debug)]
pub enum Delivery {
    /// A response, or an error in its place; more may follow.
    Partial {
        slot: u64,
        outcome: Result<Response, Error>,
    },
    /// The last response, or an error in its place.
    Final {
        slot: u64,
        outcome: Result<Response, Error>,
    },
    /// The end without a further response, as decoupled models send it.
    End { slot: u64 },
    /// Flags without FINAL and without a response. Only callbacks of embedders see them.
    Flags { slot: u64 },
}

impl Delivery {
    /// `outcome` is none where only flags are sent.
    pub fn new(slot: u64, outcome: Option<Result<Response, Error>>, is_final: bool) -> Delivery {
        match (outcome, is_final) {
            (Some(outcome), false) => Delivery::Partial { slot, outcome },
            (Some(outcome), true) => Delivery::Final { slot, outcome },
            (None, true) => Delivery::End { slot },
            (None, false) => Delivery::Flags { slot },
        }
    }

    pub fn slot(&self) -> u64 {
        match self {
            Delivery::Partial { slot, .. }
            | Delivery::Final { slot, .. }
            | Delivery::End { slot }
            | Delivery::Flags { slot } => *slot,
        }
    }

    /// Whether nothing follows for the request.
    pub fn is_final(&self) -> bool {
        matches!(self, Delivery::Final { .. } | Delivery::End { .. })
    }

    pub fn outcome(&self) -> Option<&Result<Response, Error>> {
        match self {
            Delivery::Partial { outcome, .. } | Delivery::Final { outcome, .. } => Some(outcome),
            Delivery::End { .. } | Delivery::Flags { .. } => None,
        }
    }

    pub fn outcome_mut(&mut self) -> Option<&mut Result<Response, Error>> {
        match self {
            Delivery::Partial { outcome, .. } | Delivery::Final { outcome, .. } => Some(outcome),
            Delivery::End { .. } | Delivery::Flags { .. } => None,
        }
    }

    pub fn into_outcome(self) -> Option<Result<Response, Error>> {
        match self {
            Delivery::Partial { outcome, .. } | Delivery::Final { outcome, .. } => Some(outcome),
            Delivery::End { .. } | Delivery::Flags { .. } => None,
        }
    }
}

/// Where responses go: a shard's mailbox, or an embedder's callback. Implemented outside the
/// engine.
pub trait Completion: Send + Sync {
    /// Takes one delivery. Called from any thread; must not block, and must have room for the final
    /// delivery of every request that it submitted. The receiver need not notice before
    /// [`Completion::wake`].
    fn deliver(&self, delivery: Delivery);

    /// Makes the receiver look. Called once after one or more deliveries.
    fn wake(&self);

    /// Whether deliveries wait that the receiver has not taken yet.
    fn has_waiting(&self) -> bool {
        true
    }

    /// Whether the receiver is a thread that runs on this CPU alone. Then a core that computes
    /// there may finish other brief batches before it wakes the receiver, which takes the CPU from
    /// it.
    fn is_on(&self, cpu: usize) -> bool {
        let _ = cpu;
        false
    }
}

impl std::fmt::Debug for dyn Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Completion")
    }
}
