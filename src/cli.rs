//! From command-line words to [`Arguments`], with Triton's parsing rules: GNU long options (`--flag
//! value`, `--flag=value`, unambiguous prefixes), no short options, no positional words.

use std::path::PathBuf;
use std::time::Duration;

use conch_control::ControlMode;
use conch_engine::{HostPolicies, ResourceCapacity};
use conch_frontend::{AllowedOrigins, HeaderPattern, Restrictions, ShardAffinity, TraceOptions};
use conch_memory::AllowedOwners;

use crate::cloud_flags::{self, CloudVariables};
use crate::flag_values::{
    check_unused, out_of_bound, parse_backend_config, parse_bool, parse_cache_config,
    parse_capacity, parse_count, parse_int, parse_port, parse_uids, set_host_policy,
};
use crate::flags::{self, Flag, FlagEffect, FlagValueKind, UnknownFlag};
use crate::grpc_flags::GrpcFlags;
use crate::limit_flags::LimitFlags;
use crate::trace_flags::TraceFlags;
use crate::{access_flags, deprecated};

/// What the command line asks for. Fields hold defaults until a flag changes them; `None` means
/// "decide from the machine".
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    pub server_id: String,
    pub exit_timeout_secs: u64,
    pub drain_delay_secs: u64,
    pub log_verbose: u32,
    pub log_info: bool,
    pub log_warning: bool,
    pub log_error: bool,
    pub log_is_iso8601: bool,
    pub log_file: Option<PathBuf>,
    /// In lexical order, without duplicates.
    pub model_repositories: Vec<PathBuf>,
    pub exit_on_error: bool,
    pub auto_complete: bool,
    pub expands_config: bool,
    pub strict_readiness: bool,
    pub model_config_name: String,
    pub model_load_thread_count: usize,
    pub model_load_retry_count: u32,
    pub loads_config_once: bool,
    pub pinned_pool_bytes: u64,
    /// None: a load may take as long as its backend likes.
    pub model_load_timeout_secs: Option<u64>,
    pub limits_rate: bool,
    pub rate_capacities: Vec<ResourceCapacity>,
    pub model_control_mode: ControlMode,
    /// Seconds between polls in poll mode; 0: never.
    pub repository_poll_secs: u64,
    pub startup_models: Vec<String>,
    pub namespacing: bool,
    pub allow_client_shm: bool,
    pub shm_owners: AllowedOwners,
    pub http: ListenerFlags,
    pub grpc: ListenerFlags,
    pub metrics: ListenerFlags,
    pub sagemaker: ListenerFlags,
    /// The ports that other listeners may have, where SageMaker says so.
    pub safe_ports: Option<(u16, u16)>,
    pub vertex_ai: ListenerFlags,
    pub vertex_ai_default_model: String,
    pub grpc_flags: GrpcFlags,
    pub limit_flags: LimitFlags,
    pub allow_cpu_metrics: bool,
    pub metrics_interval_ms: u64,
    /// The `*_duration_us` counters.
    pub counter_latencies: bool,
    pub http_input_bytes_max: u64,
    pub http_restrictions: Restrictions,
    pub grpc_restrictions: Restrictions,
    pub http_forward: Option<HeaderPattern>,
    pub grpc_forward: Option<HeaderPattern>,
    pub http_timeout_header: Option<Box<str>>,
    pub http_cors_origins: AllowedOrigins,
    pub strict_integers: bool,
    pub backend_directory: PathBuf,
    /// Backend (empty: all), setting, value.
    pub backend_config: Vec<(String, String, String)>,
    pub host_policies: HostPolicies,
    pub cache_directory: PathBuf,
    pub repoagent_directory: PathBuf,
    /// Cache, setting, value.
    pub cache_config: Vec<(String, String, String)>,
    pub shard_count: Option<usize>,
    pub shard_affinity: ShardAffinity,
    pub memory_limit_bytes: Option<u64>,
    pub memory_reserve_bytes: Option<u64>,
    pub memory_stall_timeout: Duration,
    pub connections_max: Option<usize>,
    pub queue_requests_max: u64,
    pub stream_patience_ms: u64,
    pub lowers_core_priority: bool,
    /// As the options below settle it.
    pub trace: TraceOptions,
    trace_flags: TraceFlags,
    /// `--disable-auto-complete-config`, and what its deprecated predecessor says.
    is_strict: bool,
    strict_model_config: Option<bool>,
    /// Flag and value of ports that do not exist. They matter only where the service is enabled.
    odd_ports: Vec<(&'static str, String)>,
    /// Warnings of deprecated flags, which go to the console as upstream's do.
    pub console_warnings: Vec<String>,
    /// To be logged once the log is set up.
    pub warnings: Vec<String>,
}

/// One listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFlags {
    pub is_enabled: bool,
    pub address: String,
    pub port: u16,
    pub shares_port: bool,
}

/// Why the process should not start.
#[derive(Debug, PartialEq, Eq)]
pub enum EarlyExit {
    /// `--help`: print the usage to standard output and exit 0.
    Help,
    /// `--version`: print the version to standard output and exit 0.
    Version,
    /// A bad flag: its name and the reason to standard error, exit 1.
    Bad { flag: String, reason: String },
    /// Flags that do not go together: the reason to standard error, exit 1.
    Clash(String),
}

impl Default for Arguments {
    fn default() -> Arguments {
        let listener = |port| ListenerFlags {
            is_enabled: true,
            address: String::from("0.0.0.0"),
            port,
            shares_port: false,
        };
        Arguments {
            server_id: String::from("triton"),
            exit_timeout_secs: 30,
            drain_delay_secs: 0,
            log_verbose: 0,
            log_info: true,
            log_warning: true,
            log_error: true,
            log_is_iso8601: false,
            log_file: None,
            model_repositories: Vec::new(),
            exit_on_error: true,
            auto_complete: true,
            expands_config: false,
            strict_readiness: true,
            model_config_name: String::new(),
            model_load_thread_count: 4,
            model_load_retry_count: 0,
            loads_config_once: false,
            pinned_pool_bytes: 256 << 20,
            model_load_timeout_secs: None,
            limits_rate: false,
            rate_capacities: Vec::new(),
            model_control_mode: ControlMode::None,
            repository_poll_secs: 15,
            startup_models: Vec::new(),
            namespacing: false,
            allow_client_shm: false,
            shm_owners: AllowedOwners::Own,
            http: listener(8000),
            grpc: listener(8001),
            metrics: ListenerFlags {
                address: String::new(),
                ..listener(8002)
            },
            sagemaker: ListenerFlags {
                is_enabled: false,
                ..listener(8080)
            },
            safe_ports: None,
            vertex_ai: ListenerFlags {
                is_enabled: false,
                ..listener(8080)
            },
            vertex_ai_default_model: String::new(),
            grpc_flags: GrpcFlags::default(),
            limit_flags: LimitFlags::default(),
            allow_cpu_metrics: true,
            metrics_interval_ms: 2_000,
            counter_latencies: true,
            http_input_bytes_max: 64 << 20,
            http_restrictions: Restrictions::default(),
            grpc_restrictions: Restrictions::default(),
            http_forward: None,
            grpc_forward: None,
            http_timeout_header: None,
            http_cors_origins: AllowedOrigins::default(),
            strict_integers: false,
            backend_directory: PathBuf::from("/opt/tritonserver/backends"),
            backend_config: Vec::new(),
            host_policies: HostPolicies::default(),
            cache_directory: PathBuf::from("/opt/tritonserver/caches"),
            repoagent_directory: PathBuf::from("/opt/tritonserver/repoagents"),
            cache_config: Vec::new(),
            shard_count: None,
            shard_affinity: ShardAffinity::Auto,
            memory_limit_bytes: None,
            memory_reserve_bytes: None,
            memory_stall_timeout: conch_frontend::FrontendOptions::default().memory_stall_timeout,
            connections_max: None,
            queue_requests_max: 65_536,
            stream_patience_ms: 30_000,
            lowers_core_priority: true,
            trace: TraceOptions::default(),
            trace_flags: TraceFlags::default(),
            is_strict: false,
            strict_model_config: None,
            odd_ports: Vec::new(),
            console_warnings: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// Parses the words after the program's name.
pub fn parse(
    words: impl IntoIterator<Item = String>,
    environment: CloudVariables<'_>,
) -> Result<Arguments, EarlyExit> {
    let mut arguments = Arguments::default();
    cloud_flags::set_defaults(&mut arguments, environment).map_err(EarlyExit::Clash)?;
    let mut words = words.into_iter();
    let mut given = Vec::new();
    while let Some(word) = words.next() {
        if word == "-h" {
            return Err(EarlyExit::Help);
        }
        let Some(named) = word.strip_prefix("--").filter(|named| !named.is_empty()) else {
            return Err(EarlyExit::Bad {
                flag: String::new(),
                reason: format!("Unexpected argument: {word}"),
            });
        };
        let (name, inline) = match named.split_once('=') {
            Some((name, value)) => (name, Some(String::from(value))),
            None => (named, None),
        };
        let bad = |reason: String| EarlyExit::Bad {
            flag: String::from(name),
            reason,
        };
        let flag = flags::find(name).map_err(|why| match why {
            UnknownFlag::Unknown => bad(flags::unknown(name)),
            UnknownFlag::Ambiguous => bad(flags::ambiguous(name)),
        })?;
        let bad = |reason: String| EarlyExit::Bad {
            flag: String::from(flag.name),
            reason,
        };
        let value = match (flag.takes, inline) {
            (FlagValueKind::Nothing, Some(_)) => {
                return Err(bad(String::from("the option takes no value")));
            }
            (FlagValueKind::Nothing, None) => String::new(),
            (_, Some(value)) => value,
            (_, None) => words
                .next()
                .ok_or_else(|| bad(String::from("the option needs a value")))?,
        };
        match flag.name {
            "help" => return Err(EarlyExit::Help),
            "version" => return Err(EarlyExit::Version),
            _ => {}
        }
        apply(&mut arguments, flag, &value).map_err(bad)?;
        given.push(flag.name);
    }
    let cache_flags = ["response-cache-byte-size", "cache-config"];
    if cache_flags.iter().all(|name| given.contains(name)) {
        return Err(EarlyExit::Bad {
            flag: String::from("response-cache-byte-size"),
            reason: String::from(
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the other.",
            ),
        });
    }
    if arguments.model_repositories.is_empty()
        && let Some(path) = environment("AIP_STORAGE_URI").filter(|path| !path.is_empty())
    {
        arguments.model_repositories.push(path.into());
    }
    finish(arguments)
}

fn apply(arguments: &mut Arguments, flag: &Flag, value: &str) -> Result<(), String> {
    match flag.takes {
        FlagValueKind::Bool => {
            parse_bool(value)?;
        }
        FlagValueKind::Int => {
            parse_int(value)?;
        }
        FlagValueKind::Nothing | FlagValueKind::Text(_) => {}
    }
    match flag.effect {
        FlagEffect::Served => {
            set(arguments, flag.name, value).map_err(|reason| flag.refuse(reason))
        }
        FlagEffect::Inert(why) => {
            check_unused(flag.name, value)?;
            arguments
                .warnings
                .push(format!("--{} has no effect: {why}", flag.name));
            Ok(())
        }
        FlagEffect::Deprecated(_) => {
            arguments
                .console_warnings
                .push(deprecated::warning(flag.name, value));
            set(arguments, flag.name, value)
        }
    }
}

/// A port, 0 if there is none such: that is refused once it is known that the service is enabled.
fn port(arguments: &mut Arguments, flag: &'static str, value: &str) -> Result<u16, String> {
    arguments.odd_ports.retain(|(odd, _)| *odd != flag);
    let port = parse_port(value)?;
    if port.is_none() {
        arguments.odd_ports.push((flag, value.to_owned()));
    }
    Ok(port.unwrap_or(0))
}

fn set(arguments: &mut Arguments, name: &str, value: &str) -> Result<(), String> {
    let own = arguments.grpc_flags.set(name, value);
    if let Some(outcome) = own.or_else(|| arguments.limit_flags.set(name, value)) {
        return outcome;
    }
    match name {
        "id" => arguments.server_id = value.into(),
        "exit-timeout-secs" => {
            arguments.exit_timeout_secs = parse_int(value)?.max(0).unsigned_abs()
        }
        "drain-delay-secs" => arguments.drain_delay_secs = parse_int(value)?.max(0).unsigned_abs(),
        "log-verbose" => {
            arguments.log_verbose = match parse_bool(value) {
                Ok(is_on) if value.parse::<i64>().is_err() => u32::from(is_on),
                _ => u32::try_from(parse_int(value)?.max(0)).map_err(|_| out_of_bound(value))?,
            }
        }
        "log-info" => arguments.log_info = parse_bool(value)?,
        "log-warning" => arguments.log_warning = parse_bool(value)?,
        "log-error" => arguments.log_error = parse_bool(value)?,
        "log-format" => {
            arguments.log_is_iso8601 = match value {
                "default" => false,
                "ISO8601" => true,
                _ => return Err(String::from("invalid argument for --log-format")),
            }
        }
        "log-file" => arguments.log_file = (!value.is_empty()).then(|| value.into()),
        "model-store" | "model-repository" => arguments.model_repositories.push(value.into()),
        "exit-on-error" => arguments.exit_on_error = parse_bool(value)?,
        "disable-auto-complete-config" => arguments.is_strict = true,
        "strict-model-config" => arguments.strict_model_config = Some(parse_bool(value)?),
        "strict-readiness" => arguments.strict_readiness = parse_bool(value)?,
        "model-config-name" if value.is_empty() => {
            return Err(String::from(
                "Error: empty argument for --model-config-name",
            ));
        }
        "model-config-name" => arguments.model_config_name = value.into(),
        "model-load-thread-count" => {
            // As upstream: at least one, whatever is asked for.
            let count = parse_int(value)?.max(1);
            arguments.model_load_thread_count =
                usize::try_from(count).map_err(|_| out_of_bound(value))?;
        }
        "model-load-retry-count" => {
            let count = parse_int(value)?.max(0);
            arguments.model_load_retry_count =
                u32::try_from(count).map_err(|_| out_of_bound(value))?;
        }
        "load-config-once" => arguments.loads_config_once = parse_bool(value)?,
        "model-load-timeout-secs" => {
            let seconds = u64::try_from(parse_int(value)?).map_err(|_| out_of_bound(value))?;
            arguments.model_load_timeout_secs = (seconds > 0).then_some(seconds);
        }
        "model-control-mode" => {
            arguments.model_control_mode = match value.to_ascii_lowercase().as_str() {
                "none" => ControlMode::None,
                "poll" => ControlMode::Poll,
                "explicit" => ControlMode::Explicit,
                _ => return Err(String::from("invalid argument for --model-control-mode")),
            }
        }
        "repository-poll-secs" => {
            arguments.repository_poll_secs = parse_int(value)?.max(0).unsigned_abs();
        }
        "load-model" => arguments.startup_models.push(value.into()),
        "model-namespacing" => arguments.namespacing = parse_bool(value)?,
        "allow-client-shm" => arguments.allow_client_shm = parse_bool(value)?,
        "shm-allowed-uids" => arguments.shm_owners = parse_uids(value)?,
        "allow-http" => arguments.http.is_enabled = parse_bool(value)?,
        "http-address" => arguments.http.address = value.into(),
        "http-port" => arguments.http.port = port(arguments, "http-port", value)?,
        "reuse-http-port" => arguments.http.shares_port = parse_bool(value)?,
        "http-max-input-size" => {
            arguments.http_input_bytes_max = u64::try_from(parse_int(value)?)
                .ok()
                .filter(|bytes| *bytes > 0)
                .ok_or("Error: --http-max-input-size must be greater than 0.")?;
        }
        "http-restricted-api" => {
            access_flags::restrict(&mut arguments.http_restrictions, access_flags::HTTP, value)?;
        }
        "grpc-restricted-protocol" => {
            access_flags::restrict(&mut arguments.grpc_restrictions, access_flags::GRPC, value)?;
        }
        "http-header-forward-pattern" => {
            arguments.http_forward = access_flags::header_pattern(value)?;
        }
        "grpc-header-forward-pattern" => {
            arguments.grpc_forward = access_flags::header_pattern(value)?;
        }
        "http-timeout-header" => {
            arguments.http_timeout_header = access_flags::header_name(value)?;
        }
        "http-cors-origins" => arguments.http_cors_origins = AllowedOrigins::parse(value)?,
        "strict-integers" => arguments.strict_integers = parse_bool(value)?,
        "allow-grpc" => arguments.grpc.is_enabled = parse_bool(value)?,
        "grpc-address" => arguments.grpc.address = value.into(),
        "grpc-port" => arguments.grpc.port = port(arguments, "grpc-port", value)?,
        "reuse-grpc-port" => arguments.grpc.shares_port = parse_bool(value)?,
        "allow-sagemaker" => arguments.sagemaker.is_enabled = parse_bool(value)?,
        "sagemaker-address" => arguments.sagemaker.address = value.into(),
        "sagemaker-port" => arguments.sagemaker.port = port(arguments, "sagemaker-port", value)?,
        "sagemaker-safe-port-range" => {
            arguments.safe_ports = Some(cloud_flags::parse_port_range(value)?);
        }
        "allow-vertex-ai" => arguments.vertex_ai.is_enabled = parse_bool(value)?,
        "vertex-ai-address" => arguments.vertex_ai.address = value.into(),
        "vertex-ai-port" => arguments.vertex_ai.port = port(arguments, "vertex-ai-port", value)?,
        "vertex-ai-default-model" => arguments.vertex_ai_default_model = value.into(),
        "allow-metrics" => arguments.metrics.is_enabled = parse_bool(value)?,
        "allow-cpu-metrics" => arguments.allow_cpu_metrics = parse_bool(value)?,
        "metrics-address" => arguments.metrics.address = value.into(),
        "metrics-port" => arguments.metrics.port = port(arguments, "metrics-port", value)?,
        "metrics-interval-ms" => {
            arguments.metrics_interval_ms = parse_int(value)?.max(0).unsigned_abs();
        }
        "metrics-config" => set_metrics_config(arguments, value)?,
        "backend-directory" => arguments.backend_directory = value.into(),
        "repoagent-directory" => arguments.repoagent_directory = value.into(),
        "backend-config" => arguments.backend_config.push(parse_backend_config(value)?),
        "model-config-env" => arguments.expands_config = parse_bool(value)?,
        "rate-limit" => {
            arguments.limits_rate = match value.to_ascii_lowercase().as_str() {
                "execution_count" => true,
                "off" => false,
                _ => return Err(String::from("invalid argument for --rate-limit")),
            }
        }
        "rate-limit-resource" => arguments.rate_capacities.push(parse_capacity(value)?),
        "host-policy" => set_host_policy(&mut arguments.host_policies, value)?,
        "cache-directory" => arguments.cache_directory = value.into(),
        "cache-config" => arguments.cache_config.push(parse_cache_config(value)?),
        "response-cache-byte-size" => {
            let bytes = parse_int(value)?;
            arguments.cache_config = vec![("local".into(), "size".into(), bytes.to_string())];
        }
        "trace-config" => {
            let warning = arguments.trace_flags.set_config(value)?;
            arguments.warnings.extend(warning);
        }
        "shards" => arguments.shard_count = Some(parse_count(value, 1)?),
        "shard-affinity" => {
            arguments.shard_affinity = match value.to_ascii_lowercase().as_str() {
                "auto" => ShardAffinity::Auto,
                "pinned" => ShardAffinity::Pinned,
                "set" => ShardAffinity::Set,
                _ => return Err(format!("Invalid option value. Got {value}")),
            }
        }
        "memory-limit-bytes" => {
            let bytes = u64::try_from(parse_int(value)?)
                .ok()
                .filter(|bytes| *bytes >= 1 << 20);
            arguments.memory_limit_bytes = Some(bytes.ok_or("at least 1048576 (1 MiB)")?);
        }
        "memory-reserve-bytes" => {
            arguments.memory_reserve_bytes = Some(parse_count(value, 0)? as u64);
        }
        "memory-stall-timeout-ms" => {
            arguments.memory_stall_timeout = Duration::from_millis(parse_count(value, 0)? as u64);
        }
        "connections-max" => arguments.connections_max = Some(parse_count(value, 1)?),
        "queue-requests-max" => arguments.queue_requests_max = parse_count(value, 1)? as u64,
        "stream-patience-ms" => arguments.stream_patience_ms = parse_count(value, 0)? as u64,
        "pinned-memory-pool-byte-size" => {
            arguments.pinned_pool_bytes = parse_int(value)?.max(0).unsigned_abs();
        }
        "lower-core-priority" => arguments.lowers_core_priority = parse_bool(value)?,
        deprecated if deprecated.starts_with("trace-") => {
            let name = deprecated.trim_start_matches("trace-");
            arguments.trace_flags.set_deprecated(name, value)?;
        }
        unlisted => unreachable!("the flag table serves --{unlisted} but nothing sets it"),
    }
    Ok(())
}

fn finish(mut arguments: Arguments) -> Result<Arguments, EarlyExit> {
    check_odd_ports(&arguments)?;
    if arguments.model_repositories.is_empty() {
        let reason = String::from("Error: --model-repository must be specified");
        return Err(EarlyExit::Bad {
            flag: String::from("model-repository"),
            reason,
        });
    }
    let is_explicit = arguments.model_control_mode == ControlMode::Explicit;
    if !arguments.startup_models.is_empty() && !is_explicit {
        let reason = "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.";
        return Err(EarlyExit::Bad {
            flag: String::from("load-model"),
            reason: String::from(reason),
        });
    }
    if let (Some(limit), Some(reserve)) =
        (arguments.memory_limit_bytes, arguments.memory_reserve_bytes)
        && reserve > limit / 2
    {
        return Err(EarlyExit::Bad {
            flag: String::from("memory-reserve-bytes"),
            reason: String::from(
                "--memory-reserve-bytes is more than half of --memory-limit-bytes.",
            ),
        });
    }
    if arguments.limits_rate && arguments.limit_flags.executions_max.is_some() {
        return Err(EarlyExit::Bad {
            flag: String::from("executions-max"),
            reason: String::from("--executions-max excludes --rate-limit=execution_count."),
        });
    }
    arguments
        .limit_flags
        .check(is_explicit)
        .map_err(|(flag, reason)| EarlyExit::Bad {
            flag: String::from(flag),
            reason: String::from(reason),
        })?;
    if arguments.is_strict && arguments.strict_model_config == Some(false) {
        arguments
            .console_warnings
            .push(deprecated::STRICT_OVERRIDDEN.to_owned());
    }
    arguments.auto_complete = !arguments.is_strict && arguments.strict_model_config != Some(true);
    let overridden = arguments.trace_flags.overridden();
    arguments.console_warnings.extend(overridden);
    arguments.startup_models.sort();
    arguments.startup_models.dedup();
    arguments.model_repositories.sort();
    arguments.model_repositories.dedup();
    arguments.trace = arguments
        .trace_flags
        .settle()
        .map_err(|reason| EarlyExit::Bad {
            flag: String::from("trace-config"),
            reason,
        })?;
    if arguments.metrics.address.is_empty() {
        arguments.metrics.address = arguments.http.address.clone();
        // Upstream starts then, with metrics that nobody can reach.
        if !arguments.http.is_enabled && !may_be_address(&arguments.http.address) {
            arguments.metrics.is_enabled = false;
            arguments.warnings.push(format!(
                "metrics are not served: --metrics-address is not given, and '{}' of --http-address is none",
                arguments.http.address
            ));
        }
    }
    let listeners = [
        ("HTTP", &arguments.http),
        ("GRPC", &arguments.grpc),
        ("metrics", &arguments.metrics),
        ("SageMaker", &arguments.sagemaker),
        ("Vertex AI", &arguments.vertex_ai),
    ];
    check_safe_ports(&arguments, &listeners)?;
    for (index, (earlier_name, earlier)) in listeners.iter().enumerate() {
        for (later_name, later) in listeners.iter().skip(index + 1) {
            let is_same =
                earlier.address == later.address && earlier.port == later.port && earlier.port != 0;
            if earlier.is_enabled && later.is_enabled && is_same {
                return Err(EarlyExit::Clash(format!(
                    "The server cannot listen to {earlier_name} requests and {later_name} requests at the same address and port {}:{}",
                    later.address, later.port
                )));
            }
        }
    }
    Ok(arguments)
}

/// Whether `text` has the form of an address or of the name of a host.
fn may_be_address(text: &str) -> bool {
    let is_name = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_plain)
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    text.contains(':') || name.split('.').all(is_name)
}

/// A port that does not exist is refused only where somebody is to listen there, as upstream has
/// it.
fn check_odd_ports(arguments: &Arguments) -> Result<(), EarlyExit> {
    for (flag, value) in &arguments.odd_ports {
        let is_enabled = match *flag {
            "http-port" => arguments.http.is_enabled,
            "grpc-port" => arguments.grpc.is_enabled,
            "sagemaker-port" => arguments.sagemaker.is_enabled,
            "vertex-ai-port" => arguments.vertex_ai.is_enabled,
            _ => arguments.metrics.is_enabled,
        };
        if is_enabled {
            return Err(EarlyExit::Bad {
                flag: String::from(*flag),
                reason: out_of_bound(value),
            });
        }
    }
    Ok(())
}

/// On SageMaker's address, other listeners keep to the ports that it allows.
fn check_safe_ports(
    arguments: &Arguments,
    listeners: &[(&str, &ListenerFlags)],
) -> Result<(), EarlyExit> {
    let sagemaker = &arguments.sagemaker;
    let Some((low, high)) = arguments.safe_ports.filter(|_| sagemaker.is_enabled) else {
        return Ok(());
    };
    for (name, listener) in listeners {
        let is_other = !std::ptr::eq(*listener, sagemaker);
        if is_other
            && listener.is_enabled
            && listener.address == sagemaker.address
            && !(low..=high).contains(&listener.port)
        {
            return Err(EarlyExit::Clash(format!(
                "The server cannot listen to {name} requests at port {}, allowed port range is [{low}, {high}]",
                listener.port
            )));
        }
    }
    Ok(())
}

/// `<setting>=<value>`. Settings that upstream has and this version does not are accepted only
/// where they ask for nothing.
fn set_metrics_config(arguments: &mut Arguments, text: &str) -> Result<(), String> {
    let parts = text.split_once('=').filter(|(setting, value)| {
        !setting.is_empty() && !setting.contains(',') && !value.is_empty()
    });
    let (setting, value) = parts.ok_or_else(|| {
        format!("--metrics-config option format is <setting>=<value>. Got {text}")
    })?;
    match setting {
        "counter_latencies" => arguments.counter_latencies = parse_bool(value)?,
        "summary_latencies" | "histogram_latencies" if !parse_bool(value)? => {}
        "summary_latencies" | "histogram_latencies" => {
            return Err(format!(
                "this version of conch does not serve --metrics-config={text}; remove the option to start without it"
            ));
        }
        _ => arguments
            .warnings
            .push(format!("--metrics-config={text} has no effect")),
    }
    Ok(())
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
