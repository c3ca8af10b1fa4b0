//! Loads that were given up and go on inside their backends.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use conch_engine::model::registry::ModelId;

/// The versions whose backends have not returned from a load that was given up.
#[derive(Default)]
pub(super) struct OverdueLoads(Mutex<BTreeSet<(ModelId, i64)>>);

impl OverdueLoads {
    pub(super) fn has(&self, id: &ModelId, version: i64) -> bool {
        self.lock().contains(&(id.clone(), version))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeSet<(ModelId, i64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
