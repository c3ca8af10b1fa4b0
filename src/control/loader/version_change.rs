//! The result of loading one version: a new version, or other instances for the one that serves.

use std::sync::{Arc, mpsc};

use conch_engine::ModelVersion;
use conch_engine::execution::revision::InstanceChange;
use conch_log as log;

use super::loaded::{Instances, Loaded};

/// What a version's load comes to.
pub(super) enum VersionChange {
    /// A version beside the one that serves, if one does.
    Loaded(Loaded),
    /// Other instances for the one that serves.
    Revised(InstanceRevision),
}

impl VersionChange {
    /// Takes down again what came up for nothing.
    pub(super) fn undo(self) {
        match self {
            VersionChange::Loaded(loaded) => loaded.unload(),
            VersionChange::Revised(revised) => drop(revised),
        }
    }
}

/// Other instances for a version that serves, made and not yet let in. Dropping it undoes that.
pub(super) struct InstanceRevision {
    pub(super) revision: InstanceChange,
    pub(super) version: Arc<ModelVersion>,
    pub(super) instances: Instances,
    pub(super) config: Arc<conch_config::ResolvedConfig>,
}

impl InstanceRevision {
    /// Lets the new instances in and the others go. What it returns is disconnected when those are
    /// finalised.
    pub(super) fn commit(self) -> Option<mpsc::Receiver<()>> {
        let InstanceRevision {
            revision,
            version,
            instances,
            config,
        } = self;
        instances.model.reconfigure(&config);
        version.set_reported_config(config);
        let gone = revision.commit();
        log::info!(
            "updated the instances of '{}' version {}",
            version.name,
            version.version
        );
        gone
    }
}
