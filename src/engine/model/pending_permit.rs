//! Places in a queue, and how many there are of them by priority level.

use std::sync::Arc;

use crate::{Error, ModelVersion};

/// A request's place among those that wait: in the pending gauge and under its level's bound. Freed
/// on drop, which is when the request joins a batch or whoever claimed it drops it.
pub struct PendingPermit {
    model: Arc<ModelVersion>,
    level: u64,
}

impl PendingPermit {
    /// A place for request `id` at `level`.
    ///
    /// # Errors
    /// UNAVAILABLE if the level is full. Not counted as a failure, as upstream counts none that was
    /// never queued.
    pub(crate) fn enter(
        model: &Arc<ModelVersion>,
        id: &str,
        level: u64,
    ) -> Result<PendingPermit, Error> {
        if !model.bounds.try_enter(level) {
            return Err(crate::request::messages::full(id));
        }
        model.statistics.add_pending();
        Ok(PendingPermit {
            model: Arc::clone(model),
            level,
        })
    }
}

impl Drop for PendingPermit {
    fn drop(&mut self) {
        self.model.statistics.remove_pending(1);
        self.model.bounds.leave(self.level);
    }
}
