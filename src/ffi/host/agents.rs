//! The repository agents of one server: finding their libraries, and attaching models to them.

use std::path::PathBuf;
use std::sync::Arc;

use conch_control::{AgentContext, AgentHost, AgentModel};
use conch_engine::Error;

use super::agent::LoadedAgent;
use super::agent_model::LoadedAgentModel;

/// The agents that one server can have.
pub(crate) struct Agents {
    /// Holds one directory per agent.
    directory: PathBuf,
}

impl Agents {
    pub(crate) fn new(directory: PathBuf) -> Agents {
        Agents { directory }
    }

    /// # Errors
    /// INVALID_ARG if there is no such library.
    fn locate(&self, name: &str) -> Result<PathBuf, Error> {
        let file = format!("libtritonrepoagent_{name}.so");
        let path = self.directory.join(name).join(&file);
        // A name with a separator would lead elsewhere.
        if !name.contains('/') && path.is_file() {
            // Two ways to one file are one agent.
            return Ok(path.canonicalize().unwrap_or(path));
        }
        Err(Error::invalid(format!(
            "unable to find '{file}' for repo agent '{name}', searched: {}",
            self.directory.display()
        )))
    }
}

impl AgentHost for Agents {
    fn attach(&self, name: &str, context: AgentContext) -> Result<Arc<dyn AgentModel>, Error> {
        let agent = LoadedAgent::open(name, &self.locate(name)?)?;
        Ok(LoadedAgentModel::begin(agent, context)?)
    }

    fn find(&self, name: &str) -> Result<(), Error> {
        self.locate(name).map(|_| ())
    }

    fn list(&self) -> Vec<(String, String)> {
        LoadedAgent::list()
    }
}
