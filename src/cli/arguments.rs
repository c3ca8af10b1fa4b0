//! The result of the command line: the option structures of the other crates, and the options of
//! the executable.

use std::path::PathBuf;
use std::time::Duration;

use conch_control::{ControlMode, EngineOptions};
use conch_ffi::host::HostOptions;
use conch_frontend::{FrontendOptions, HostFiles};
use conch_log::{LogFormat, LogSettings};

use crate::limits::OnDemandFlags;
use crate::listeners::Listeners;
use crate::tls::TlsFlags;
use crate::trace::TraceFlags;

/// Options of the server. Fields hold defaults until a flag changes them; `None` means "decide from
/// the machine".
#[derive(Clone, Debug)]
pub struct Arguments {
    pub log: LogSettings,
    pub engine: EngineOptions,
    /// Words that are no options: models to serve that lie in no repository.
    pub model_files: Vec<String>,
    /// Without endpoints and TLS: `frontend_options` completes it.
    pub frontend: FrontendOptions,
    pub plugins: HostOptions,
    pub listeners: Listeners,
    pub vertex_ai_default_model: String,
    pub grpc_tls: TlsFlags,
    pub http_tls: TlsFlags,
    pub metrics_tls: TlsFlags,
    /// Certificates for hosts, of all listeners with TLS.
    pub tls_hosts: Vec<HostFiles>,
    /// The rules of callers; empty: none.
    pub auth_config: PathBuf,
    /// Between looks at the files of TLS and of callers; zero: never.
    pub file_reload: Duration,
    pub drain_delay: Duration,
    /// Between polls in poll mode; zero: never.
    pub(crate) repository_poll: Duration,
    pub shard_count: Option<usize>,
    pub connections_max: Option<usize>,
    /// Warnings of deprecated flags, which go to the console as upstream's do.
    pub console_warnings: Vec<String>,
    /// To be logged once the log is set up.
    pub warnings: Vec<String>,
    pub(crate) combined: CombinedFlags,
}

/// Flags that mean something only beside others: `check` reads them when all flags are known.
#[derive(Clone, Debug, Default)]
pub struct CombinedFlags {
    pub memory_limit_bytes: Option<u64>,
    pub on_demand: OnDemandFlags,
    pub trace: TraceFlags,
    pub cache: CacheFlags,
    /// `--disable-auto-complete-config`, and what its deprecated predecessor says.
    pub is_strict: bool,
    pub strict_model_config: Option<bool>,
}

/// The response cache, as `--cache-config` or its deprecated predecessor has it.
#[derive(Clone, Debug, Default)]
pub struct CacheFlags {
    /// Cache, setting, value.
    pub settings: Vec<(String, String, String)>,
    pub local_bytes: Option<i64>,
}

impl Arguments {
    /// Time between polls of the repositories, if they are polled.
    pub fn poll_period(&self) -> Option<Duration> {
        let polls = self.engine.model_control_mode == ControlMode::Poll;
        (polls && !self.repository_poll.is_zero()).then_some(self.repository_poll)
    }
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments {
            log: LogSettings {
                file: String::new(),
                shows_info: true,
                shows_warning: true,
                shows_error: true,
                verbose_level: 0,
                format: LogFormat::Default,
            },
            engine: EngineOptions::default(),
            model_files: Vec::new(),
            frontend: FrontendOptions::default(),
            plugins: HostOptions::of_executable(std::env::current_exe().ok().as_deref()),
            listeners: Listeners::default(),
            vertex_ai_default_model: String::new(),
            grpc_tls: TlsFlags::default(),
            http_tls: TlsFlags::default(),
            metrics_tls: TlsFlags::default(),
            tls_hosts: Vec::new(),
            auth_config: PathBuf::new(),
            file_reload: Duration::from_secs(5),
            drain_delay: Duration::ZERO,
            repository_poll: Duration::from_secs(15),
            shard_count: None,
            connections_max: None,
            console_warnings: Vec::new(),
            warnings: Vec::new(),
            combined: CombinedFlags::default(),
        }
    }
}
