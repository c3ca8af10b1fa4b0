//! From a model's name to what is to be loaded: reading its directory, or what came with the
//! request.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use conch_config::{ModelConfig, Preparation};
use conch_engine::Error;
use conch_engine::model::registry::ModelId;

use super::Lifecycle;
use super::chain::AgentChain;
use super::files::OverrideFiles;
use super::load_plan::LoadPlan;
use super::loaded::ModelResources;
use super::remote_copies::{LocalModel, RemoteCopy};
use super::source::ModelSource;
use crate::load_overrides::Overrides;
use crate::repository::fingerprint::Fingerprint;
use crate::repository::model_directory::{complete_candidate, read_config};

impl Lifecycle {
    /// What an arrival is to become; none if nothing has changed. Several may be planned at a time;
    /// agents are asked under `agent_turn`, as upstream asks them one after the other.
    ///
    /// # Errors
    /// Why the model did not arrive, and as [`Lifecycle::plan`].
    pub(super) fn plan_arrived(
        &self,
        id: &ModelId,
        arrival: Result<Option<LocalModel>, Error>,
        is_explicit: bool,
        agent_turn: &Mutex<()>,
    ) -> Result<Option<LoadPlan>, Error> {
        arrival?
            .map(|arrival| self.plan(id, arrival, is_explicit, agent_turn))
            .transpose()
    }

    /// Reads a model's directory.
    ///
    /// # Errors
    /// What is wrong with its configuration, or what an agent has against it.
    fn plan(
        &self,
        id: &ModelId,
        arrival: LocalModel,
        is_explicit: bool,
        agent_turn: &Mutex<()>,
    ) -> Result<LoadPlan, Error> {
        let ConfigOptions {
            config_name,
            may_complete,
        } = self.reading();
        let copy = arrival.copy.clone();
        let expands = self.options.expands_config;
        let outcome = read_config(arrival.directory(), config_name, may_complete, expands)
            .and_then(|config| {
                let has_agents = |config: &ModelConfig| config.model_repository_agents.is_some();
                let _turn = config.as_ref().is_some_and(has_agents).then(|| {
                    let turn = agent_turn.lock();
                    turn.unwrap_or_else(PoisonError::into_inner)
                });
                self.plan_for(id, PlanOrigin::plain(arrival), config, is_explicit)
            });
        if outcome.is_err() {
            self.add_spare_copy(id, copy.as_ref());
        }
        outcome
    }

    /// The model that a request describes by its configuration.
    ///
    /// # Errors
    /// As [`Lifecycle::plan_arrived`], and INVALID_ARG for overrides that are no good.
    pub(super) fn plan_overridden(
        &self,
        id: &ModelId,
        arrival: LocalModel,
        overrides: &Overrides,
    ) -> Result<LoadPlan, Error> {
        let origin = PlanOrigin {
            is_plain: false,
            ..PlanOrigin::plain(arrival)
        };
        self.plan_for(id, origin, overridden_config(overrides)?, true)
    }

    /// The model that a request describes by its configuration and all its files.
    ///
    /// # Errors
    /// As [`Lifecycle::plan_overridden`].
    pub(super) fn plan_from_files(
        &self,
        id: &ModelId,
        files: OverrideFiles,
        overrides: &Overrides,
    ) -> Result<LoadPlan, Error> {
        let origin = PlanOrigin {
            place: files.path().to_owned(),
            directory: files.path().to_owned(),
            looks: None,
            is_plain: false,
            copy: None,
            files: Some(files),
        };
        self.plan_for(id, origin, overridden_config(overrides)?, true)
    }

    fn plan_for(
        &self,
        id: &ModelId,
        origin: PlanOrigin,
        config: Option<ModelConfig>,
        is_explicit: bool,
    ) -> Result<LoadPlan, Error> {
        let PlanOrigin {
            place,
            directory,
            looks,
            is_plain,
            copy,
            files,
        } = origin;
        let path = directory.as_path();
        let ConfigOptions {
            config_name,
            may_complete,
        } = self.reading();
        // Agents are for models whose configuration somebody wrote.
        let agents = match &config {
            Some(config) => AgentChain::load(
                self.host.agents(),
                config,
                path,
                config_name,
                self.options.expands_config,
            )?,
            None => None,
        };
        // As upstream, an agent may move the model, but its configuration stays that of the first
        // place.
        let location = agents.as_ref().and_then(AgentChain::location);
        let preparation = Preparation {
            name: &id.name,
            path: location.as_deref().unwrap_or(path),
            is_mapped: self.repositories().is_mapped(&id.name),
            may_complete,
        };
        let candidate = complete_candidate(config.unwrap_or_default(), &preparation)?;
        let needs = conch_config::needed_models(&candidate.config);
        Ok(LoadPlan {
            id: id.clone(),
            source: ModelSource {
                path: place,
                looks,
                is_plain,
                keeps_config: !is_plain && !self.options.loads_config_once,
                config: candidate.config.clone(),
                needs,
                is_explicit,
            },
            candidate,
            resources: ModelResources {
                agents: agents.map(Arc::new),
                files: files.map(Arc::new),
                copy,
            },
        })
    }

    fn reading(&self) -> ConfigOptions<'_> {
        ConfigOptions {
            config_name: &self.options.model_config_name,
            may_complete: self.options.auto_complete,
        }
    }
}

/// Where a plan's files come from.
struct PlanOrigin {
    /// In the repository, if the model has one.
    place: PathBuf,
    directory: PathBuf,
    looks: Option<Fingerprint>,
    /// Nothing came with the request.
    is_plain: bool,
    copy: Option<Arc<RemoteCopy>>,
    files: Option<OverrideFiles>,
}

impl PlanOrigin {
    fn plain(arrival: LocalModel) -> PlanOrigin {
        PlanOrigin {
            directory: arrival.directory().to_owned(),
            place: arrival.path,
            looks: Some(arrival.looks),
            is_plain: true,
            copy: arrival.copy,
            files: None,
        }
    }
}

fn overridden_config(overrides: &Overrides) -> Result<Option<ModelConfig>, Error> {
    let parse = |json: &String| {
        conch_config::from_json(json)
            .map_err(|error| Error::invalid(format!("Invalid config override: {}", error.message)))
    };
    overrides.config.as_ref().map(parse).transpose()
}

/// How configurations are read.
struct ConfigOptions<'o> {
    config_name: &'o str,
    may_complete: bool,
}
