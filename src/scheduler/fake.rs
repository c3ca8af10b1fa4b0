//! Shared by the tests of schedulers: requests that remember who claimed them, and a plain
//! configuration.

use std::cell::Cell;
use std::rc::Rc;

use conch_config::{DynamicBatching, QueuePolicy};
use conch_sync::ClaimReason;

use crate::entry::{Entry, SchedulingParams};
use crate::sequence_batcher::SequenceContext;

#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) number: usize,
    pub(crate) facts: SchedulingParams,
    pub(crate) reason: Cell<Option<ClaimReason>>,
    pub(crate) member: Option<SequenceContext>,
    pub(crate) is_cancelled: Cell<bool>,
}

impl Fake {
    pub(crate) fn new(
        number: usize,
        facts: SchedulingParams,
        member: Option<SequenceContext>,
    ) -> Rc<Fake> {
        Rc::new(Fake {
            number,
            facts,
            reason: Cell::new(None),
            member,
            is_cancelled: Cell::new(false),
        })
    }
}

impl Entry for Rc<Fake> {
    type Owned = usize;

    fn facts(&self) -> &SchedulingParams {
        &self.facts
    }

    fn is_waiting(&self) -> bool {
        self.reason.get().is_none()
    }

    fn claim(&self, reason: ClaimReason) -> Option<usize> {
        let is_free = self.reason.get().is_none();
        is_free.then(|| {
            self.reason.set(Some(reason));
            self.number
        })
    }

    fn member(&self) -> Option<&SequenceContext> {
        self.member.as_ref()
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.get()
    }

    fn is_same(&self, other: &Rc<Fake>) -> bool {
        Rc::ptr_eq(self, other)
    }
}

/// A dynamic batcher without levels, timeouts or bounds.
pub(crate) fn settings(preferred: &[u32], delay_us: u64) -> DynamicBatching {
    DynamicBatching {
        preferred_batch_sizes: preferred.to_vec(),
        max_queue_delay_us: delay_us,
        is_preserving_order: false,
        is_by_deadline: false,
        priority_levels: 0,
        default_priority_level: 0,
        default_policy: QueuePolicy::default(),
        priority_policies: Vec::new(),
    }
}
