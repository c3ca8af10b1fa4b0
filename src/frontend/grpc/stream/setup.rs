//! The terms of a stream.

use crate::grpc::compression::CallCompression;
use crate::grpc::infer::CallMetadata;

/// Messages written, or read, before other tasks get their turn: some 300 us.
pub(super) const MESSAGES_PER_TURN: usize = 64;

/// What a stream was begun with.
pub(in crate::grpc) struct StreamSetup {
    /// Monotonic; of the whole stream.
    pub(in crate::grpc) deadline_ns: Option<u64>,
    /// The first failed inference ends the stream with its status.
    pub(in crate::grpc) ends_at_error: bool,
    /// Of each of its requests.
    pub(in crate::grpc) sender: CallMetadata,
    pub(in crate::grpc) compression: CallCompression,
}
