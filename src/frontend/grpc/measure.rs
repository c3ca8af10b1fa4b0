//! Single steps of a request's walk, for the micro-benches in `bench/`. Nothing else calls this.

use std::sync::Arc;

use conch_memory::{Budget, Pool};

use super::infer::MessageReader;

/// Splits one ModelInferRequest into its head and its tensors, each in a block of its own; the
/// number of tensors, if it is sound.
pub fn grpc_message(pool: &Arc<Pool>, budget: &Arc<Budget>, message: &[u8]) -> Option<usize> {
    let mut reader = MessageReader::new(pool, budget, message.len());
    reader.feed(message).ok()?;
    Some(reader.finish().ok()?.raws.len())
}
