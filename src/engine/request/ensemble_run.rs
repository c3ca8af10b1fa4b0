//! The run of an ensemble's request, as the requests of its steps and whoever cancels it see it.

use std::fmt;
use std::sync::Arc;

use crate::model::stats::ExecutionSpan;

/// Implemented by `ensemble`; any thread may call it.
pub(crate) trait EnsembleRun: Send + Sync {
    /// Withdraws the steps that wait and marks those that execute. Answers on the calling thread if
    /// none executes.
    fn cancel(&self);

    /// How many ensembles are around this one.
    fn depth(&self) -> u32;

    /// Adds the time that one execution of a step took.
    fn add_span(&self, span: &ExecutionSpan);

    /// The request of a step is over: the counterpart of [`StepGuard::new`].
    fn release_step(&self);

    /// The request of a step is never dropped, as its device may still use what it refers to: the
    /// ensemble's request is kept as well, and nobody waits for it.
    fn abandon_step(&self);
}

/// Held by the request of a step: while there is one, the ensemble's request is not given up.
pub(crate) struct StepGuard(Arc<dyn EnsembleRun>);

impl StepGuard {
    /// The caller has counted the step in `run`.
    pub(crate) fn new(run: Arc<dyn EnsembleRun>) -> StepGuard {
        StepGuard(run)
    }

    /// The depth of an ensemble that runs as this step.
    pub(crate) fn depth_inside(&self) -> u32 {
        self.0.depth().saturating_add(1)
    }

    /// In place of a drop that never comes. Once.
    pub(crate) fn abandon(&self) {
        self.0.abandon_step();
    }

    /// Adds the time that one execution of the step took.
    pub(crate) fn add_span(&self, span: &ExecutionSpan) {
        self.0.add_span(span);
    }
}

impl Drop for StepGuard {
    fn drop(&mut self) {
        self.0.release_step();
    }
}

impl fmt::Debug for StepGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepGuard").finish_non_exhaustive()
    }
}
