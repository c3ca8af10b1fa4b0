//! The repository agents of one model, in the order of its configuration.
//!
//! ```text
//! LOAD ──model up──► LOAD_COMPLETE ──taken down──► UNLOAD ──model gone──► UNLOAD_COMPLETE
//!   └─────model, or an agent, failed─────► LOAD_FAIL
//! ```
//!
//! LOAD and UNLOAD go from the first agent to the last, what follows them from the last to the
//! first, as upstream. Only an error of LOAD has a consequence; others are logged.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use conch_config::ModelConfig;
use conch_engine::Error;
use conch_log as log;

use crate::repository::model_directory::read_config;
use crate::{AgentAction, AgentContext, AgentHost, AgentModel};

/// Dropped when the model is gone.
pub(super) struct AgentChain {
    agents: Vec<Arc<dyn AgentModel>>,
    last: Mutex<AgentAction>,
}

impl AgentChain {
    /// Attaches the agents that `config` names and tells each to load; none if it names none. Each
    /// sees the location that its predecessor left, and the configuration there.
    ///
    /// # Errors
    /// The first agent's that cannot be had or refuses; those before it hear LOAD_FAIL.
    pub(super) fn load(
        host: &dyn AgentHost,
        config: &ModelConfig,
        path: &Path,
        config_name: &str,
        expands: bool,
    ) -> Result<Option<AgentChain>, Error> {
        let Some(wanted) = &config.model_repository_agents else {
            return Ok(None);
        };
        let mut chain = AgentChain {
            agents: Vec::with_capacity(wanted.agents.len()),
            last: Mutex::new(AgentAction::Load),
        };
        for agent in &wanted.agents {
            let (location, config) = match chain.location() {
                Some(moved) => {
                    let config = read_config(&moved, config_name, true, expands);
                    (moved, config.ok().flatten().unwrap_or_default())
                }
                None => (path.to_owned(), config.clone()),
            };
            let context = AgentContext {
                location,
                config,
                parameters: agent.parameters.clone().into_iter().collect(),
            };
            let model = host.attach(&agent.name, context)?;
            // Kept first, so that it hears LOAD_FAIL of its own refusal, as upstream.
            chain.agents.push(Arc::clone(&model));
            model.act(AgentAction::Load)?;
        }
        Ok(chain.agents.last().is_some().then_some(chain))
    }

    /// Where the last agent says the model lies.
    pub(super) fn location(&self) -> Option<PathBuf> {
        self.agents.last().map(|agent| agent.location())
    }

    pub(super) fn complete_load(&self) {
        self.advance(AgentAction::Load, AgentAction::LoadComplete);
    }

    /// Does nothing the second time: a model has one chain and many versions.
    pub(super) fn begin_unload(&self) {
        self.advance(AgentAction::LoadComplete, AgentAction::Unload);
    }

    fn advance(&self, from: AgentAction, to: AgentAction) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != from {
            return;
        }
        *last = to;
        let tell = |agent: &Arc<dyn AgentModel>| {
            if let Err(error) = agent.act(to) {
                log::error!("Agent model returns error on {to}: {error}");
            }
        };
        match to {
            AgentAction::Load | AgentAction::Unload => self.agents.iter().for_each(tell),
            AgentAction::LoadComplete | AgentAction::LoadFail | AgentAction::UnloadComplete => {
                self.agents.iter().rev().for_each(tell);
            }
        }
    }
}

impl Drop for AgentChain {
    fn drop(&mut self) {
        // Each does nothing unless it is the next step.
        self.advance(AgentAction::Load, AgentAction::LoadFail);
        self.advance(AgentAction::LoadComplete, AgentAction::Unload);
        self.advance(AgentAction::Unload, AgentAction::UnloadComplete);
        // The last of the agents goes first.
        while self.agents.pop().is_some() {}
    }
}
