//! Options of the plug-in host.

use std::path::PathBuf;

use conch_engine::HostPolicies;

/// What the host is made with.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// `name` of the server metadata, for backends that ask.
    pub server_id: String,
    /// Holds one directory per backend.
    pub backend_directory: PathBuf,
    /// `--backend-config`: backend (empty: all of them), setting, value.
    pub backend_config: Vec<(String, String, String)>,
    /// Whether backends may complete configurations.
    pub auto_complete: bool,
    /// What a completed configuration batches up to, unless `backend_config` says otherwise.
    pub default_max_batch_size: u32,
    /// The oldest GPU generation to use, for backends that ask.
    pub capability_min: f64,
    /// Where instances run, for backends that ask.
    pub host_policies: HostPolicies,
    /// Holds one directory per response cache.
    pub cache_directory: PathBuf,
    /// The response cache: its name and its configuration (JSON). Empty: none; more than one is
    /// refused at the start.
    pub cache_config: Vec<(String, String)>,
    /// Holds one directory per repository agent.
    pub repoagent_directory: PathBuf,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            server_id: String::from("triton"),
            backend_directory: PathBuf::from("/opt/tritonserver/backends"),
            backend_config: Vec::new(),
            auto_complete: true,
            default_max_batch_size: 4,
            capability_min: conch_engine::gpus::GpuOptions::default().capability_min,
            host_policies: HostPolicies::default(),
            cache_directory: PathBuf::from("/opt/tritonserver/caches"),
            cache_config: Vec::new(),
            repoagent_directory: PathBuf::from("/opt/tritonserver/repoagents"),
        }
    }
}
