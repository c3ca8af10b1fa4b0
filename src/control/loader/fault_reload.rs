//! Models that are loaded again by themselves after a device did not answer.
//!
//! Only as often in the life of the server as `CONCH_RELOADS_MAX` of the model says: each time an
//! instance is left behind with its memory, which the device may still use.

use std::sync::{Arc, PoisonError, Weak};

use conch_engine::ModelVersion;
use conch_engine::execution::queue::ModelQueue;
use conch_engine::model::registry::ModelId;
use conch_log as log;

use super::Lifecycle;
use super::thread::run_on_thread;

impl Lifecycle {
    /// Has the model of `version` loaded again when its device does not answer, if it is to be.
    pub(super) fn reload_on_fault(&self, queue: &ModelQueue, version: &Arc<ModelVersion>) {
        let reloads_max = version.config.own.reloads_max;
        if reloads_max == 0 {
            return;
        }
        let (own, failed) = (Weak::clone(&self.own), Arc::downgrade(version));
        queue.when_failed(Box::new(move || {
            if let (Some(lifecycle), Some(version)) = (own.upgrade(), failed.upgrade()) {
                lifecycle.begin_reload(&version, reloads_max);
            }
        }));
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

    fn begin_reload(self: &Arc<Self>, version: &Arc<ModelVersion>, reloads_max: u32) {
        let name = Arc::clone(&version.name);
        let mut counts = self
            .fault_reloads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(Arc::clone(&name)).or_default();
        if *count >= reloads_max {
            log::error!("model '{name}' is not loaded again by itself: it was {count} times");
            return;
        }
        *count += 1;
        drop(counts);
        // The caller is a core of that model, which the load waits for.
        let (own, failed) = (Arc::downgrade(self), Arc::downgrade(version));
        run_on_thread("reload", move || {
            let is_there = failed
                .upgrade()
                .is_some_and(|version| version.fault().is_some());
            if let Some(lifecycle) = own.upgrade().filter(|_| is_there) {
                lifecycle.load_again(&name);
            }
        });
    }

    /// Loads a model from its files.
    fn load_again(&self, name: &str) {
        log::info!("loading model '{name}' again, as its device did not answer");
        let mut failures = Vec::new();
        match self.load_named(&[name.to_owned()].into(), &mut failures) {
            Ok(true) => {}
            Ok(false) => log::error!("model '{name}' is not loaded again: its files are not there"),
            Err(error) => log::error!("model '{name}' is not loaded again: {error}"),
        }
        for (id, error) in failures {
            log::error!("model '{id}' is not loaded again: {error}");
        }
    }
}
