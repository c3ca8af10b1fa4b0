//! The control plane: which models of which repositories are loaded, and what the server says of
//! itself.
//!
//! [`Server`] starts the engine, loads models from repositories, publishes them in the engine's
//! registry and stops it all. Everything here may allocate, lock and block: it runs on control and
//! loader threads, never on a shard or a core.

#![forbid(unsafe_code)]

pub mod agents;
pub mod check;
pub mod dashboard;
pub mod documents;
pub mod example_request;
mod gpu_watch;
pub mod json;
mod load_overrides;
mod loader;
pub mod metadata;
pub mod metrics;
mod model_control;
pub mod on_demand;
mod options;
mod placement_table;
mod repository;
pub mod server;
pub mod server_metadata;
mod serving_state;
mod start_tables;

pub use agents::{AgentAction, AgentContext, AgentHost, AgentModel, NoAgents, PluginHost};
pub use load_overrides::{LOAD_FILES_MAX, Overrides};
pub use on_demand::OnDemand;
pub use options::{ControlMode, EngineOptions, OnDemandSettings};
pub use repository::remote;
pub use repository::{
    RemoteRepositories, ScratchDirectory, StandaloneModel, StandaloneRepository, standalone_models,
};
pub use server::Server;
pub use server_metadata::{IndexRow, ServerMetadata};
