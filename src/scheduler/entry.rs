//! A queued request as schedulers see it.

use std::sync::Arc;

use conch_sync::{Claim, ClaimReason, NEVER_NS, Owned};
use smallvec::SmallVec;

use crate::sequence_batcher::SequenceContext;

/// What batches require to be equal: the shapes of the variable, non-ragged inputs, the contents of
/// shape tensors, and which inputs are there if any is optional. Empty for a model whose requests
/// always fit together.
pub type Signature = SmallVec<[i64; 4]>;

/// What a scheduler knows of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulingParams {
    /// Inferences in it, at least 1.
    pub batch_count: u32,
    /// Its priority level; 0 on a model without levels.
    pub level: u64,
    /// When it entered the queue.
    pub queued_ns: u64,
    /// The client's own timeout; 0 for none.
    pub timeout_us: u64,
    /// When the client stops waiting, where it said so: a wish that orders requests, and that
    /// others see to. [`NEVER_NS`] for none.
    pub deadline_ns: u64,
    pub signature: Signature,
}

impl Default for SchedulingParams {
    fn default() -> SchedulingParams {
        SchedulingParams {
            batch_count: 0,
            level: 0,
            queued_ns: 0,
            timeout_us: 0,
            deadline_ns: NEVER_NS,
            signature: Signature::new(),
        }
    }
}

/// A queued request, which somebody else may claim at any time.
pub trait Entry: Clone {
    type Owned;

    fn facts(&self) -> &SchedulingParams;

    /// Whether nobody has claimed it yet.
    fn is_waiting(&self) -> bool;

    /// Takes possession; none if somebody was faster.
    fn claim(&self, reason: ClaimReason) -> Option<Self::Owned>;

    /// Its part in its sequence, on a model whose requests have one: then nobody but the scheduler
    /// claims it.
    fn member(&self) -> Option<&SequenceContext>;

    /// Whether somebody asked to cancel it, as far as the scheduler is not told later.
    fn is_cancelled(&self) -> bool;

    /// Whether both are the same request.
    fn is_same(&self, other: &Self) -> bool;
}

/// What everyone may read of a request that is claimed.
pub trait EntryKind {
    fn facts(&self) -> &SchedulingParams;

    /// As [`Entry::member`].
    fn member(&self) -> Option<&SequenceContext>;
}

impl<S: EntryKind, T> Entry for Arc<Claim<S, T>> {
    type Owned = Owned<S, T>;

    fn facts(&self) -> &SchedulingParams {
        self.shared().facts()
    }

    fn is_waiting(&self) -> bool {
        self.is_queued()
    }

    fn claim(&self, reason: ClaimReason) -> Option<Owned<S, T>> {
        Claim::claim(self, reason, None)
    }

    fn member(&self) -> Option<&SequenceContext> {
        self.shared().member()
    }

    fn is_cancelled(&self) -> bool {
        self.was_cancelled()
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self, other)
    }
}
