//! How far a server is in its life.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use conch_engine::Error;
use conch_engine::model::registry::NOT_READY;

/// Phases of a server's life, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    Serving = 1,
    /// Not ready any more, but requests are still served.
    Draining = 2,
    Stopping = 3,
}

/// The phase of a server, and whether it serves models at all.
#[derive(Debug)]
pub(crate) struct ServingState {
    phase: AtomicU8,
    /// The start failed before any model was looked at (`--exit-on-error=false`): only what
    /// concerns no model is answered.
    is_unfit: AtomicBool,
}

impl Default for ServingState {
    fn default() -> ServingState {
        ServingState {
            phase: AtomicU8::new(Phase::Serving as u8),
            is_unfit: AtomicBool::new(false),
        }
    }
}

impl ServingState {
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 | 1 => Phase::Serving,
            2 => Phase::Draining,
            _ => Phase::Stopping,
        }
    }

    /// Goes on to `phase`, unless it is there or beyond; returns whether it did.
    pub(crate) fn advance(&self, phase: Phase) -> bool {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel) < phase as u8
    }

    pub(crate) fn is_unfit(&self) -> bool {
        self.is_unfit.load(Ordering::Acquire)
    }

    pub(crate) fn set_unfit(&self) {
        self.is_unfit.store(true, Ordering::Release);
    }

    /// # Errors
    /// UNAVAILABLE in upstream's words if no model is served: the server stops, or its start
    /// failed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.phase() >= Phase::Stopping || self.is_unfit() {
            return Err(Error::unavailable(NOT_READY));
        }
        Ok(())
    }
}
