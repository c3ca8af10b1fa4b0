//! What became of one model, for reports; and the loads of a check, one model after the other.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use conch_config::{ModelConfig, VersionPolicy};
use conch_engine::Error;
use conch_engine::model::registry::{ModelId, VersionState};

use super::Lifecycle;
use super::table::LoadFailure;
use crate::load_overrides::Overrides;

/// What is known of a model after it was to be loaded.
#[derive(Debug, Default)]
pub(crate) struct ModelOutcome {
    /// Ascending.
    pub(crate) versions: Vec<(i64, VersionState)>,
    pub(crate) failure: Option<LoadFailure>,
    /// Before its backend completed it; none if it was refused, or no version was found.
    pub(crate) config: Option<ModelConfig>,
}

impl ModelOutcome {
    /// The versions that the configuration names and that are not there.
    pub(crate) fn missing_versions(&self) -> Vec<i64> {
        let without_groups = self.config.as_ref().map(|config| ModelConfig {
            instance_group: Vec::new(),
            ..config.clone()
        });
        let facts = without_groups.and_then(|config| {
            let facts = conch_config::ResolvedConfig::from_partial(config);
            facts.ok()
        });
        let Some(VersionPolicy::Specific(mut wanted)) = facts.map(|facts| facts.version_policy)
        else {
            return Vec::new();
        };
        wanted.sort_unstable();
        wanted.dedup();
        wanted.retain(|wanted| !self.versions.iter().any(|(version, _)| version == wanted));
        wanted
    }
}

impl Lifecycle {
    /// What became of the model `id`.
    pub(crate) fn outcome(&self, id: &ModelId) -> ModelOutcome {
        let models = self.table.lock();
        let Some(entry) = models.get(id) else {
            return ModelOutcome::default();
        };
        let slots = entry.versions.iter();
        ModelOutcome {
            versions: slots
                .map(|(version, slot)| (*version, slot.state.clone()))
                .collect(),
            failure: entry.failure.clone(),
            config: entry.source.as_ref().map(|source| source.config.clone()),
        }
    }

    /// Loads model `name` and what it needs. What became of its versions is in
    /// [`Lifecycle::outcome`].
    ///
    /// # Errors
    /// Why the model could not be read, or the first of its failures.
    pub(crate) fn load_alone(&self, name: &str) -> Result<(), Error> {
        let loaded = self.load_model(name, Overrides::default());
        loaded.map_err(|error| self.unreadable(name).unwrap_or(error))
    }

    /// Why model `name` cannot be read, which a load only tells the log.
    fn unreadable(&self, name: &str) -> Option<Error> {
        let repositories = self.repositories().clone();
        let located = match repositories.locate(name) {
            Ok(located) => located,
            Err(error) => return Some(error),
        };
        let arrivals = self.arrive(&located, true);
        let mut planned = located.iter().zip(arrivals);
        planned.find_map(|((id, _), arrival)| {
            self.plan_arrived(id, arrival, true, &Mutex::default())
                .err()
        })
    }

    /// Unloads model `name` with what came for it, and waits until that is gone, at most so long.
    ///
    /// # Errors
    /// UNAVAILABLE if the server is stopping.
    pub(crate) fn unload_alone(&self, name: &str, patience: Duration) -> Result<(), Error> {
        self.unload_model(name, true)?;
        let deadline = Instant::now() + patience;
        while !self.table.unloading().is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.table.await_unload(left);
        }
        Ok(())
    }
}
