//! A request as it was parsed, before it is checked against its model.

use std::sync::Arc;

use conch_config::DataType;
use conch_memory::ByteView;
use smallvec::SmallVec;

use crate::tensor::TENSORS_IN_PLACE;
use crate::{CorrelationId, Parameter, RequestFeatures, RequestObserver, SequenceFlags, Shape};

/// What a client asked for, as parsed: nothing is checked against the model yet. Names borrow from
/// the request's bytes.
#[derive(Debug, Default)]
pub struct Draft<'a> {
    pub id: &'a str,
    pub correlation_id: CorrelationId,
    pub sequence_flags: SequenceFlags,
    /// 0: the model's default.
    pub priority: u64,
    pub timeout_us: u64,
    pub parameters: Vec<Parameter>,
    pub inputs: DraftInputs<'a>,
    /// Empty: all outputs of the model.
    pub requested_outputs: SmallVec<[&'a str; 4]>,
    /// The single input is the raw body; its name, type and shape come from the model.
    pub is_raw: bool,
    /// Who asks, if within this process; told nothing unless the request is submitted.
    pub observer: Option<Arc<dyn RequestObserver>>,
    pub features: RequestFeatures,
}

/// The inputs of a [`Draft`].
pub type DraftInputs<'a> = SmallVec<[DraftInput<'a>; TENSORS_IN_PLACE]>;

/// One input of a [`Draft`].
#[derive(Debug)]
pub struct DraftInput<'a> {
    pub name: &'a str,
    pub data_type: DataType,
    pub shape: Shape,
    /// The tensor's bytes in wire layout, in one or more pieces.
    pub chunks: SmallVec<[ByteView; 1]>,
}
