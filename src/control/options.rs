//! Options of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use conch_engine::flow_control::credits;
use conch_engine::gpus::GpuOptions;
use conch_engine::limits;
use conch_engine::model::stats::ObservationOptions;
use conch_engine::{HostPolicies, ResourceCapacity};
use conch_memory::AllowedOwners;

use crate::metrics;
use crate::repository::remote::{NoRemote, RemoteRepositories};

/// Who decides which models of the repositories are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlMode {
    /// All of them, once, at start.
    #[default]
    None,
    /// All of them, at start and after each change on disk.
    Poll,
    /// The startup models, then whatever clients load and unload.
    Explicit,
}

/// How models come and go. The defaults are those of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDemandSettings {
    /// Bytes that models may take.
    pub budget_bytes: u64,
    /// How long a request waits for its model, and a model for room.
    pub patience: Duration,
    /// Requests that wait for models.
    pub waiting_max: usize,
}

/// What a server is started with. The defaults are those of the command line.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// `name` of the server metadata.
    pub server_id: String,
    pub model_repositories: Vec<PathBuf>,
    /// Serves those of them that are URIs.
    pub remote: Arc<dyn RemoteRepositories>,
    /// Use `configs/<name>.pbtxt` where a model has it; empty: `config.pbtxt` only.
    pub model_config_name: String,
    /// Put values of environment variables into configuration files, where `${NAME}` stands.
    pub expands_config: bool,
    /// Complete partial configurations, by rule and by the backend.
    pub auto_complete: bool,
    /// A model that fails to load fails [`Server::start`].
    pub exit_on_error: bool,
    /// Ready means that all models are.
    pub strict_readiness: bool,
    /// For all of [`Server::stop`].
    pub exit_timeout: Duration,
    /// Bound of the bytes that requests hold in this process.
    pub memory_limit_bytes: u64,
    /// Of these, what is for connections that hold little; none: a sixteenth.
    pub memory_reserve_bytes: Option<u64>,
    /// Free blocks that the pool keeps for reuse.
    pub pool_retain_bytes: usize,
    /// Bound of the live requests of one model version.
    pub queue_requests_max: u64,
    /// How long the reader of a stream may take nothing while responses wait beyond its credits.
    pub stream_patience: Duration,
    /// Models come when they are asked for, within a budget of memory; explicit mode only.
    pub demand: Option<OnDemandSettings>,
    /// Bounds of what is let in, beyond which clients are to come again.
    pub admission: limits::AdmissionBounds,
    /// CPUs given to the network's shards; cores keep off them where enough others remain.
    pub shard_cpus: Vec<usize>,
    /// Each shard is bound to its CPU, unless it starves there.
    pub pins_shards: bool,
    /// Run cores at nice +5 where they share CPUs with shards.
    pub lowers_core_priority: bool,
    /// Where instances run, by their policy.
    pub host_policies: HostPolicies,
    /// Instances execute only with the resources that their groups name
    /// (`--rate-limit=execution_count`).
    pub limits_rate: bool,
    /// Executions at a time over all models, which share them by weight; excludes `limits_rate`.
    pub executions_max: Option<u64>,
    /// How much there is of these resources; none: as much as the neediest instance asks for.
    pub rate_capacities: Vec<ResourceCapacity>,
    pub model_load_thread_count: usize,
    /// Further attempts after a version failed to load.
    pub model_load_retry_count: u32,
    /// A configuration that comes with a load lasts until the next load without one, not until the
    /// model's files change.
    pub loads_config_once: bool,
    /// How long one attempt to load a version may take; none: as long as its backend likes.
    pub model_load_timeout: Option<Duration>,
    /// Set by whoever wants [`Server::start`] to end soon: no further model is loaded.
    pub stop_request: Arc<AtomicBool>,
    pub model_control_mode: ControlMode,
    /// What explicit mode loads at start; `*` alone for everything.
    pub startup_models: Vec<String>,
    /// Tell models of the same name in different repositories apart.
    pub namespacing: bool,
    /// Let clients register shared memory.
    pub allow_client_shm: bool,
    /// Whose shared memory that may be.
    pub shm_owners: AllowedOwners,
    /// How GPUs and the memory for transfers are used.
    pub gpu: GpuOptions,
    /// Serve metrics at all, and those of process and CPU.
    pub allow_metrics: bool,
    pub allow_cpu_metrics: bool,
    /// And those of GPUs, where there are any.
    pub allow_gpu_metrics: bool,
    /// `counter_latencies` of the metrics configuration: the `*_duration_us` families.
    pub counter_latencies: bool,
    /// `summary_latencies`: the summaries of the same durations.
    pub summary_latencies: bool,
    /// `histogram_latencies`: the histogram of first responses.
    pub histogram_latencies: bool,
    /// `summary_quantiles`: those that summaries show.
    pub summary_quantiles: Vec<f64>,
    /// Histograms of conch's own: of queue, compute and total time, and of batch sizes.
    pub duration_histograms: bool,
    /// How old the figures of process, CPU and GPUs may be.
    pub metrics_interval: Duration,
}

impl EngineOptions {
    /// What versions keep of their requests for the metrics.
    pub(crate) fn observed(&self) -> ObservationOptions {
        ObservationOptions {
            histograms: self.allow_metrics && self.duration_histograms,
            summaries: self.allow_metrics && self.summary_latencies,
            first_responses: self.allow_metrics && self.histogram_latencies,
        }
    }
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            server_id: "triton".to_owned(),
            model_repositories: Vec::new(),
            remote: Arc::new(NoRemote),
            model_config_name: String::new(),
            expands_config: false,
            auto_complete: true,
            exit_on_error: true,
            strict_readiness: true,
            exit_timeout: Duration::from_secs(30),
            memory_limit_bytes: metrics::process::memory_total_bytes() / 2,
            memory_reserve_bytes: None,
            pool_retain_bytes: 64 << 20,
            queue_requests_max: 65_536,
            stream_patience: credits::PATIENCE,
            demand: None,
            admission: limits::AdmissionBounds::default(),
            shard_cpus: Vec::new(),
            pins_shards: true,
            lowers_core_priority: true,
            host_policies: HostPolicies::default(),
            limits_rate: false,
            executions_max: None,
            rate_capacities: Vec::new(),
            model_load_thread_count: 4,
            model_load_retry_count: 0,
            loads_config_once: false,
            model_load_timeout: None,
            stop_request: Arc::default(),
            model_control_mode: ControlMode::None,
            startup_models: Vec::new(),
            namespacing: false,
            allow_client_shm: false,
            shm_owners: AllowedOwners::Own,
            gpu: GpuOptions::default(),
            allow_metrics: true,
            allow_cpu_metrics: true,
            allow_gpu_metrics: true,
            counter_latencies: true,
            summary_latencies: false,
            histogram_latencies: false,
            summary_quantiles: metrics::DEFAULT_QUANTILES.to_vec(),
            duration_histograms: true,
            metrics_interval: Duration::from_millis(2_000),
        }
    }
}
