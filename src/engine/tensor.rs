//! Tensors of requests: shapes, and the inputs as backends see them.

use std::sync::Arc;

use conch_config::DataType;
use conch_memory::ByteView;
use smallvec::SmallVec;

/// Dimensions; up to six are stored in place.
pub type Shape = SmallVec<[i64; 6]>;

/// Tensors that a request has room for in place. It is moved several times on its way, so more room
/// costs all requests more than further allocations cost those with many inputs.
pub const TENSORS_IN_PLACE: usize = 2;

/// The inputs of a [`Request`](crate::Request).
pub type RequestInputs = SmallVec<[Input; TENSORS_IN_PLACE]>;

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

/// One output tensor. `data` holds its bytes in wire layout.
#[derive(Clone, Debug)]
pub struct Output {
    pub name: Arc<str>,
    pub data_type: DataType,
    pub shape: Shape,
    pub data: ByteView,
}
