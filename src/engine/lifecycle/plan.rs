//! From a model's name to what is to be loaded: reading its directory, or what came with the request.

use std::path::Path;
use std::sync::Arc;

use conch_config::{ModelConfig, Preparation};

use super::Lifecycle;
use super::chain::Chain;
use super::files::OverrideFiles;
use super::loaded::Keepers;
use super::source::Source;
use crate::fingerprint::Fingerprint;
use crate::registry::ModelId;
use crate::repository::{Candidate, complete_candidate, read_config};
use crate::{Error, Overrides};

/// A model that is to be loaded.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) id: ModelId,
    pub(super) candidate: Candidate,
    pub(super) source: Source,
    pub(super) keepers: Keepers,
}

impl Lifecycle {
    /// Reads the model in directory `path`; none if it is loaded and has not changed since.
    ///
    /// # Errors
    /// What is wrong with its configuration, or what an agent has against it.
    pub(super) fn plan(
        &self,
        id: &ModelId,
        path: &Path,
        is_explicit: bool,
    ) -> Result<Option<Plan>, Error> {
        // Before anything is read, so that a change meanwhile shows next time.
        let looks = Fingerprint::of(path);
        let is_same = {
            let models = self.board.lock();
            let source = models.get(id).and_then(|entry| entry.source.as_ref());
            source.is_some_and(|source| source.is_same(path, &looks))
        };
        if is_same {
            return Ok(None);
        }
        let Options {
            config_name,
            may_complete,
        } = self.reading();
        let config = read_config(path, config_name, may_complete)?;
        let origin = Origin {
            path,
            looks: Some(looks),
            is_plain: true,
            files: None,
        };
        self.plan_for(id, origin, config, is_explicit).map(Some)
    }

    /// The model that a request describes: its configuration, or that and all its files.
    ///
    /// # Errors
    /// As [`Lifecycle::plan`], and INVALID_ARG for overrides that are no good.
    pub(super) fn plan_overridden(
        &self,
        id: &ModelId,
        path: &Path,
        overrides: &Overrides,
        files: Option<OverrideFiles>,
    ) -> Result<Plan, Error> {
        let config = match &overrides.config {
            Some(json) => Some(conch_config::from_json(json).map_err(|error| {
                Error::invalid(format!("Invalid config override: {}", error.message))
            })?),
            None => None,
        };
        let looks = files.is_none().then(|| Fingerprint::of(path));
        let path = files.as_ref().map_or(path, OverrideFiles::path).to_owned();
        let origin = Origin {
            path: &path,
            looks,
            is_plain: false,
            files,
        };
        self.plan_for(id, origin, config, true)
    }

    fn plan_for(
        &self,
        id: &ModelId,
        origin: Origin<'_>,
        config: Option<ModelConfig>,
        is_explicit: bool,
    ) -> Result<Plan, Error> {
        let Origin {
            path,
            looks,
            is_plain,
            files,
        } = origin;
        let Options {
            config_name,
            may_complete,
        } = self.reading();
        // Agents are for models whose configuration somebody wrote.
        let agents = match &config {
            Some(config) => Chain::load(self.host.agents(), config, path, config_name)?,
            None => None,
        };
        // As upstream, an agent may move the model, but its configuration stays that of the first place.
        let location = agents.as_ref().and_then(Chain::location);
        let preparation = Preparation {
            name: &id.name,
            path: location.as_deref().unwrap_or(path),
            is_mapped: self.repositories().is_mapped(&id.name),
            may_complete,
        };
        let candidate = complete_candidate(config.unwrap_or_default(), &preparation)?;
        let needs = conch_config::needed_models(&candidate.config);
        Ok(Plan {
            id: id.clone(),
            source: Source {
                path: path.to_owned(),
                looks,
                is_plain,
                config: candidate.config.clone(),
                needs,
                is_explicit,
            },
            candidate,
            keepers: Keepers {
                agents: agents.map(Arc::new),
                _files: files.map(Arc::new),
            },
        })
    }

    fn reading(&self) -> Options<'_> {
        Options {
            config_name: &self.options.model_config_name,
            may_complete: self.options.auto_complete,
        }
    }
}

/// Where a plan's files come from.
struct Origin<'p> {
    path: &'p Path,
    looks: Option<Fingerprint>,
    /// Nothing came with the request.
    is_plain: bool,
    files: Option<OverrideFiles>,
}

/// How configurations are read.
struct Options<'o> {
    config_name: &'o str,
    may_complete: bool,
}
