//! Models whose device does not answer: the server is not ready, and they are loaded again.
//!
//! Only as often in the life of the server as `CONCH_RELOADS_MAX` of the model says: each time an
//! instance is left behind with its memory, which the device may still use.

use std::sync::{Arc, PoisonError, Weak};
use std::thread;

use conch_engine::ModelVersion;
use conch_engine::execution::queue::ModelQueue;
use conch_engine::model::registry::ModelId;
use conch_log as log;

use super::Lifecycle;

impl Lifecycle {
    /// Follows up when the device of `version` does not answer, on a thread of its own: the
    /// listener is called by a core of the version, for which a load waits.
    pub(super) fn watch_fault(&self, queue: &ModelQueue, version: &Arc<ModelVersion>) {
        let own = Weak::clone(&self.own);
        let id = ModelId {
            namespace: Arc::clone(&version.namespace),
            name: Arc::clone(&version.name),
        };
        let reloads_max = version.config.own.reloads_max;
        queue.when_failed(Box::new(move || {
            let Some(lifecycle) = own.upgrade() else {
                return;
            };
            let table = Arc::clone(&lifecycle.table);
            let follow_up = move || {
                lifecycle.table.note_fault();
                if reloads_max > 0 {
                    lifecycle.reload(&id, reloads_max);
                }
            };
            let thread = thread::Builder::new().name("reload".to_owned());
            if let Err(cause) = thread.spawn(follow_up) {
                table.note_fault();
                log::error!("failed to start a thread to load a model again: {cause}");
            }
        }));
    }

    /// Devices broke, or work again: whether the server is ready may have changed.
    pub(crate) fn note_device_faults(&self) {
        self.table.note_fault();
    }

    /// Whether a version of a model serves no more, as its device did not answer.
    pub(super) fn has_fault(&self, id: &ModelId) -> bool {
        let models = self.table.lock();
        let entry = models.get(id);
        entry.is_some_and(|entry| {
            let mut slots = entry.versions.values();
            slots.any(|slot| slot.fault().is_some())
        })
    }

    /// Loads a model from its files, unless it was loaded again or unloaded meanwhile, or was
    /// reloaded `reloads_max` times.
    fn reload(&self, id: &ModelId, reloads_max: u32) {
        let mut failures = Vec::new();
        let mut is_counted = false;
        let is_wanted = || {
            is_counted = is_counted || self.has_fault(id) && self.count_reload(id, reloads_max);
            is_counted && self.has_fault(id)
        };
        match self.load_if(&[id.name.to_string()].into(), is_wanted, &mut failures) {
            Ok(true) => {}
            Ok(false) => log::error!("model '{id}' is not loaded again: its files are not there"),
            Err(error) => log::error!("model '{id}' is not loaded again: {error}"),
        }
        for (id, error) in failures {
            log::error!("model '{id}' is not loaded again: {error}");
        }
    }

    /// Counts one reload more, if that may be.
    fn count_reload(&self, id: &ModelId, reloads_max: u32) -> bool {
        let mut counts = self
            .fault_reloads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(id.clone()).or_default();
        if *count >= reloads_max {
            log::error!(
                "model '{id}' is not loaded again by itself: CONCH_RELOADS_MAX is {reloads_max}"
            );
            return false;
        }
        *count += 1;
        log::info!(
            "loading model '{id}' again, as its device did not answer: {count} of {reloads_max} \
             times"
        );
        true
    }
}
