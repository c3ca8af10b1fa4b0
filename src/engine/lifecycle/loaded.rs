//! A version that is up, with everything that must outlive it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::chain::Chain;
use super::files::OverrideFiles;
use crate::core::Cores;
use crate::{Model, ModelVersion, log};

/// Its parts go in the order of the fields: instances on their threads, then the model in its backend, then what its files needed.
pub(super) struct Loaded {
    cores: Cores,
    model: Arc<dyn Model>,
    version: Arc<ModelVersion>,
    keepers: Keepers,
    serial: u64,
}

/// What a model's files need for as long as it is loaded; shared by its versions.
#[derive(Clone, Default)]
pub(super) struct Keepers {
    /// Repository agents: told of the end when the last version is gone.
    pub(super) agents: Option<Arc<Chain>>,
    /// Files that came with the load.
    pub(super) _files: Option<Arc<OverrideFiles>>,
}

impl Loaded {
    pub(super) fn new(
        cores: Cores,
        model: Arc<dyn Model>,
        version: Arc<ModelVersion>,
        keepers: Keepers,
    ) -> Loaded {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Loaded {
            cores,
            model,
            version,
            keepers,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(super) fn version(&self) -> &Arc<ModelVersion> {
        &self.version
    }

    /// Different for every version that was ever loaded.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Refuses new requests, as the server stops.
    pub(super) fn close(&self) {
        self.cores.close();
    }

    /// Lets no more requests in and tells the agents. Call it once the registry shows another version, or none.
    pub(super) fn retire(&self) {
        self.version.retire();
        if let Some(agents) = &self.keepers.agents {
            agents.begin_unload();
        }
    }

    /// Waits for the last request, drops the instances, then the model. Blocks as long as the backend does.
    pub(super) fn unload(self) {
        let Loaded {
            cores,
            model,
            version,
            keepers,
            ..
        } = self;
        version.retire();
        version.await_last_request();
        cores.stop();
        drop(model);
        log::info!(
            "successfully unloaded '{}' version {}",
            version.name,
            version.version
        );
        drop(keepers);
    }
}
