//! Repository agents: plug-ins that may change where a model lies before it is loaded, and are told
//! of its loads and unloads. `ffi::host` implements them over Triton's C ABI, tests by fakes.
//! Control threads alone call them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use conch_config::ModelConfig;
use conch_engine::{BackendHost, Error};

/// What happens to a model, in its only orders: LOAD, then LOAD_FAIL, or LOAD_COMPLETE, UNLOAD and
/// UNLOAD_COMPLETE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AgentAction {
    Load = 0,
    LoadComplete = 1,
    LoadFail = 2,
    Unload = 3,
    UnloadComplete = 4,
}

impl AgentAction {
    /// The name of Triton's C API.
    pub const fn name(self) -> &'static str {
        match self {
            AgentAction::Load => "TRITONREPOAGENT_ACTION_LOAD",
            AgentAction::LoadComplete => "TRITONREPOAGENT_ACTION_LOAD_COMPLETE",
            AgentAction::LoadFail => "TRITONREPOAGENT_ACTION_LOAD_FAIL",
            AgentAction::Unload => "TRITONREPOAGENT_ACTION_UNLOAD",
            AgentAction::UnloadComplete => "TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE",
        }
    }
}

impl fmt::Display for AgentAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an agent learns of the model that it is to look after.
pub struct AgentContext {
    /// Where the model lies, as far as the agents before this one have not moved it.
    pub location: PathBuf,
    pub config: ModelConfig,
    /// Of the agent's entry in the configuration, in its order.
    pub parameters: Vec<(String, String)>,
}

/// Finds and opens agents.
pub trait AgentHost: Send + Sync {
    /// Opens agent `name` (or takes the one that is open) for one model.
    ///
    /// # Errors
    /// No such library, it cannot be loaded, or what its initialisation returned.
    fn attach(&self, name: &str, context: AgentContext) -> Result<Arc<dyn AgentModel>, Error>;

    /// Looks for the library of agent `name`, and opens nothing.
    ///
    /// # Errors
    /// No such library.
    fn find(&self, _name: &str) -> Result<(), Error> {
        Ok(())
    }

    /// Name and library path of every open agent, for the start-up table.
    fn list(&self) -> Vec<(String, String)>;
}

/// One agent's view of one model. Dropping it ends the view.
pub trait AgentModel: Send + Sync {
    /// Tells the agent. Blocks as long as it does.
    ///
    /// # Errors
    /// What the agent says; INTERNAL out of the order of [`AgentAction`].
    fn act(&self, action: AgentAction) -> Result<(), Error>;

    /// Where the agent says the model lies.
    fn location(&self) -> PathBuf;
}

/// Where plug-ins come from: backends, caches and repository agents.
pub trait PluginHost: BackendHost {
    /// Where repository agents come from.
    fn agents(&self) -> &dyn AgentHost {
        &NoAgents
    }
}

/// A host that has no agents.
pub struct NoAgents;

impl AgentHost for NoAgents {
    fn attach(&self, name: &str, _: AgentContext) -> Result<Arc<dyn AgentModel>, Error> {
        Err(Error::invalid(format!(
            "unable to find 'libtritonrepoagent_{name}.so' for repo agent '{name}'"
        )))
    }

    fn list(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}
