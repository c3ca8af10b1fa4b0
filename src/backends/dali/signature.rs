//! What a pipeline declares, as configurations are completed from it and checked against it.

use crate::capi::Port;

/// What a pipeline declares of itself.
#[derive(Clone, Debug)]
pub struct Signature {
    pub inputs: Vec<Port>,
    /// In the pipeline's order, which is that of the configuration: names need not agree.
    pub outputs: Vec<Port>,
    pub batch_size: i64,
    /// Whether the server batches, or the first dimension is written in `dims`.
    pub is_batching: bool,
}
