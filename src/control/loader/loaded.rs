//! A version that is up, with everything that must outlive it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conch_engine::ensemble::Ensemble;
use conch_engine::execution::cores::Cores;
use conch_engine::execution::queue::ModelQueue;
use conch_engine::{Backend, Model, ModelVersion};
use conch_log as log;

use super::chain::AgentChain;
use super::files::OverrideFiles;
use super::remote_copies::RemoteCopy;

/// Its parts go in the order of the fields: instances on their threads, then the model in its
/// backend, then what its files needed.
pub(super) struct Loaded {
    kind: LoadedKind,
    version: Arc<ModelVersion>,
    resources: ModelResources,
    serial: u64,
}

/// What executes its requests.
enum LoadedKind {
    Instances(Instances),
    Ensemble(Arc<Ensemble>),
}

/// A version's instances, and what they were made from. Clones are for control threads, and gone
/// when the version is.
#[derive(Clone)]
pub(super) struct Instances {
    pub(super) cores: Arc<Cores>,
    pub(super) model: Arc<dyn Model>,
    pub(super) backend: Arc<dyn Backend>,
}

/// What a model's files need for as long as it is loaded; shared by its versions.
#[derive(Clone, Default)]
pub(super) struct ModelResources {
    /// Repository agents: told of the end when the last version is gone.
    pub(super) agents: Option<Arc<AgentChain>>,
    /// Files that came with the load.
    pub(super) files: Option<Arc<OverrideFiles>>,
    /// Files that came from a remote repository.
    pub(super) copy: Option<Arc<RemoteCopy>>,
}

impl Loaded {
    pub(super) fn new(
        instances: Instances,
        version: Arc<ModelVersion>,
        resources: ModelResources,
    ) -> Loaded {
        Loaded::of(LoadedKind::Instances(instances), version, resources)
    }

    pub(super) fn of_ensemble(
        ensemble: Arc<Ensemble>,
        version: Arc<ModelVersion>,
        resources: ModelResources,
    ) -> Loaded {
        Loaded::of(LoadedKind::Ensemble(ensemble), version, resources)
    }

    fn of(kind: LoadedKind, version: Arc<ModelVersion>, resources: ModelResources) -> Loaded {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Loaded {
            kind,
            version,
            resources,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(super) fn version(&self) -> &Arc<ModelVersion> {
        &self.version
    }

    /// Its instances; none if it is an ensemble.
    pub(super) fn instances(&self) -> Option<&Instances> {
        match &self.kind {
            LoadedKind::Instances(instances) => Some(instances),
            LoadedKind::Ensemble(_) => None,
        }
    }

    /// Different for every version that was ever loaded.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Its queue; none if it is an ensemble.
    pub(super) fn queue(&self) -> Option<&Arc<ModelQueue>> {
        self.instances().map(|instances| instances.cores.queue())
    }

    /// Nobody sends the versions anything any more that it took the place of.
    pub(super) fn give_up_draining(&self) {
        if let Some(queue) = self.queue() {
            queue.draining_versions.abandon();
        }
    }

    /// Refuses new requests, as the server stops.
    pub(super) fn close(&self) {
        match &self.kind {
            LoadedKind::Instances(instances) => instances.cores.close(),
            LoadedKind::Ensemble(ensemble) => ensemble.close(),
        }
    }

    /// Lets no more requests in and tells the agents. Call it once the registry shows another
    /// version, or none.
    pub(super) fn retire(&self) {
        self.version.retire();
        if let Some(agents) = &self.resources.agents {
            agents.begin_unload();
        }
    }

    /// Waits for the last request, drops the instances, then the model. Blocks as long as the
    /// backend does.
    pub(super) fn unload(self) {
        let Loaded {
            kind,
            version,
            resources,
            ..
        } = self;
        version.retire();
        version.await_last_request();
        if let LoadedKind::Instances(instances) = kind {
            instances.cores.stop();
            drop(instances);
        }
        log::info!(
            "successfully unloaded '{}' version {}",
            version.name,
            version.version
        );
        drop(resources);
    }
}
