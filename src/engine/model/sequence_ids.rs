//! Ids of sequences that have none of their own.

use std::sync::atomic::AtomicU64;

/// Ids for requests of iterative sequences that have none.
#[derive(Debug, Default)]
pub(crate) struct SequenceIds {
    pub(crate) made: AtomicU64,
}
