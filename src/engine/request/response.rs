//! The way back: responses, and the trait through which they reach whoever asked.

use crate::Output;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Error;
use crate::model::version::ModelVersion;
use crate::request::parameter::Parameter;

/// One answer of a model to a request.
#[derive(Clone, Debug)]
pub struct Response {
    pub model: Arc<ModelVersion>,
    /// Two in place: responses are moved from hand to hand, and few models make more.
    pub outputs: SmallVec<[Output; 2]>,
    pub parameters: Vec<Parameter>,
}

impl Response {
    /// Bytes of its outputs that are left to be sent: those in shared memory are where they are
    /// wanted.
    pub fn byte_size(&self) -> u64 {
        self.outputs
            .iter()
            .filter(|output| !output.data.is_shared())
            .map(|output| output.data.len() as u64)
            .sum()
    }
}

/// What a completion receives: zero or one response, and whether it is the last.
#[derive(Debug)]
pub struct Delivery {
    /// [`RequestContext::slot`] of the request.
    pub slot: u64,
    /// `None`: flags only (a decoupled model that ends without a further response).
    pub outcome: Option<Result<Response, Error>>,
    pub is_final: bool,
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
}

/// The turn of a request under preserve-ordering.
pub(crate) trait ResponseTurn: Send + Sync {
    /// Takes the next turn for the request, which is about to execute.
    fn reserve(&self);
}

impl std::fmt::Debug for dyn Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Completion")
    }
}
