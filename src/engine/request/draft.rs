//! A request as it was parsed, before it is checked against its model.

use std::sync::Arc;

use conch_config::DataType;
use conch_memory::{Budget, ByteView};
use smallvec::SmallVec;

use crate::shared_memory::RequestRegions;
use crate::{CorrelationId, Credits, InFlightPermit, Parameter, RequestObserver, Shape, Tenant};

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
