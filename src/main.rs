//! The server's executable: wiring only.
//!
//! Command line -> log -> what the machine allows -> models -> shards -> wait for a signal -> drain
//! -> stop. Everything that can fail before the first request fails here, with a message and exit
//! code 1.
#![forbid(unsafe_code)]

mod access_flags;
mod cli;
mod cloud_flags;
mod deprecated;
mod flag_table;
mod flag_values;
mod flags;
mod grpc_flags;
mod limit_flags;
mod machine;
mod poll;
mod signals;
mod suggest;
mod trace_flags;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use conch_control::ControlMode;
use conch_control::server::Server;
use conch_engine::Error;
use conch_frontend::{Frontend, TlsConfig};
use conch_log as log;
use conch_memory::{Reserve, SparseArray};
use conch_net::signal::{self, Signals};

use cli::{Arguments, EarlyExit};
use cloud_flags::endpoint;
use machine::MachineFacts;
use signals::SignalWatch;

// Buffers come and go on different threads all the time: mimalloc returns memory across threads
// without a lock. Only the executable may choose an allocator; a shared library must not. When the
// system refuses memory, what cannot fail lives from a reserve.
#[global_allocator]
static ALLOCATOR: SparseArray<Reserve<mimalloc::MiMalloc>> =
    SparseArray::new(Reserve::new(mimalloc::MiMalloc));

/// What this program is, and whose interfaces it has.
fn version() -> String {
    format!(
        "conch {} (interfaces of Triton {})",
        env!("CARGO_PKG_VERSION"),
        conch_control::server_metadata::VERSION
    )
}

fn main() -> ExitCode {
    // Tests of what happens without memory; in other builds there is no such thing.
    #[cfg(debug_assertions)]
    if let Some(path) = environment("CONCH_REFUSE_MEMORY")
        && let Err(error) = conch_memory::refusals::follow(&path)
    {
        eprintln!("CONCH_REFUSE_MEMORY: {error}");
        return ExitCode::FAILURE;
    }
    conch_net::limits::save_address_space();
    let arguments = match cli::parse(std::env::args().skip(1), &environment) {
        Ok(arguments) => arguments,
        Err(EarlyExit::Help) => {
            print!("{}", flags::usage());
            return ExitCode::SUCCESS;
        }
        Err(EarlyExit::Version) => {
            println!("{}", version());
            return ExitCode::SUCCESS;
        }
        Err(EarlyExit::Bad { flag, reason }) => {
            if flag.is_empty() {
                eprintln!("{reason}");
            } else {
                eprintln!("Bad option: \"--{flag}\".\n{reason}");
            }
            eprintln!("'conch --help' lists all options.");
            return ExitCode::FAILURE;
        }
        Err(EarlyExit::Clash(reason)) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = run(&arguments);
    if let Err(StartFailure { message, is_logged }) = &outcome {
        // Whoever counts the lines of an error on the console is to find one.
        let is_seen =
            *is_logged && log::is_shown(log::LogLevel::Error) && log::settings().file.is_empty();
        if !is_seen {
            log::print(log::StandardStream::Stderr, message);
        }
    }
    log::flush(log::EXIT_FLUSH);
    if outcome.is_err() {
        // Threads may still be inside of plug-ins, whose exit handlers must not run then.
        signal::end_process(1);
    }
    ExitCode::SUCCESS
}

/// Why the program ends, in the last line that the user sees.
struct StartFailure {
    message: String,
    /// The log has this message already.
    is_logged: bool,
}

impl From<String> for StartFailure {
    fn from(message: String) -> StartFailure {
        StartFailure {
            message,
            is_logged: false,
        }
    }
}

/// Serves until a signal comes.
fn run(arguments: &Arguments) -> Result<(), StartFailure> {
    for warning in &arguments.console_warnings {
        eprintln!("{warning}");
    }
    log::tell_panics();
    signal::drain_before_crash(log::pending)
        .map_err(|error| format!("error: cannot install signal handlers: {error}"))?;
    start_log(arguments);
    log::info!("{}", version());
    for warning in &arguments.warnings {
        log::warning!("{warning}");
    }
    let machine = machine::prepare(arguments).map_err(|reason| format!("error: {reason}"))?;
    // Before the first thread of a model: a signal during a long load must not leave half-started
    // backends behind.
    let [interrupt, terminate] = signal::STOPS;
    let signals = Signals::install(&[interrupt, terminate, signal::RELOAD])
        .and_then(|signals| signal::survive_size_limits().map(|()| signals))
        .and_then(|signals| signal::survive_stray_signals().map(|()| signals))
        .map_err(|error| format!("error: cannot install signal handlers: {error}"))?;
    let creating = |error: Error| {
        format!(
            "error: creating server: {} - {}",
            error.code.name(),
            error.message
        )
    };
    let network = frontend_options(arguments, &machine)
        .map_err(|error| format!("error: {} - {}", error.code.name(), error.message))?;
    // Loading may take minutes. It is looked at again when the models are there, by then listening.
    conch_frontend::check_addresses(&network).map_err(network_failure)?;
    let options = server_options(arguments, &machine);
    let stop_request = Arc::clone(&options.stop_request);
    let watch = SignalWatch::start(
        signals,
        options.exit_timeout,
        Arc::clone(&stop_request),
        reload(arguments, network.grpc_tls.clone()),
    )
    .map_err(|error| format!("error: cannot start a thread: {error}"))?;
    let started = conch_ffi::start(options, plugin_options(arguments));
    watch.started();
    let server = match started {
        Ok((server, _)) => server,
        // As it was asked to.
        Err(_) if stop_request.load(Ordering::Relaxed) => return Ok(()),
        Err(error) => return Err(creating(error).into()),
    };
    let frontend = match conch_frontend::start(network, Arc::clone(&server)) {
        Ok(frontend) => frontend,
        Err(error) => {
            let mut failure = network_failure(error);
            if let Err(error) = server.stop() {
                failure = format!("{} ({error})", failure.message).into();
            }
            return Err(failure);
        }
    };
    let poller = (arguments.model_control_mode == ControlMode::Poll
        && arguments.repository_poll_secs > 0)
        .then(|| {
            let period = Duration::from_secs(arguments.repository_poll_secs);
            poll::Poller::start(Arc::clone(&server), period)
        })
        .transpose();
    let urls = frontend.addresses().urls();
    match server.check_serving() {
        Ok(()) => log::info!("serving: {urls}"),
        Err(_) => log::warning!("no model is served, see the error above; listening: {urls}"),
    }
    let number = watch
        .wait()
        .ok_or_else(|| String::from("error: signals cannot be read"))?;
    log::info!("{} received, stopping", signals::signal_name(number));
    drop(poller);
    stop(arguments, &server, frontend).map_err(StartFailure::from)
}

/// The last line of a server whose network side does not start.
fn network_failure(error: Error) -> StartFailure {
    if error.message.starts_with("failed to start ") {
        return StartFailure {
            message: error.message.into_owned(),
            is_logged: true,
        };
    }
    format!("error: {} - {}", error.code.name(), error.message).into()
}

/// Not ready at once, normal service for the drain delay, then finish what is in flight, all within
/// one budget.
fn stop(arguments: &Arguments, server: &Server, mut frontend: Frontend) -> Result<(), String> {
    server.begin_drain();
    std::thread::sleep(Duration::from_secs(arguments.drain_delay_secs));
    let deadline = Instant::now() + Duration::from_secs(arguments.exit_timeout_secs);
    frontend.drain(deadline, |seconds| server.log_in_flight(seconds));
    let left = deadline.saturating_duration_since(Instant::now());
    server.stop_within(left).map_err(|error| {
        format!(
            "failed to stop server: {} - {}",
            error.code.name(),
            error.message
        )
    })?;
    frontend
        .stop()
        .map_err(|error| format!("failed to stop the network threads: {error}"))
}

/// What SIGHUP does: it opens the log file by its path again, so that it may have been renamed, and
/// reads the certificates again.
fn reload(arguments: &Arguments, tls: Option<TlsConfig>) -> impl Fn() + Send + 'static {
    let flags = arguments.grpc_flags.clone();
    move || {
        match log::reopen_file() {
            Ok(()) => log::info!("SIGHUP received, the log file is open anew"),
            Err(error) => log::error!("SIGHUP received, the log goes on as before: {error}"),
        }
        let Some(tls) = &tls else { return };
        match flags.load_tls(true) {
            Ok(Some(fresh)) => {
                tls.replace(&fresh);
                log::info!("new connections use the certificates as they are now");
            }
            Ok(None) => {}
            Err(error) => log::error!("certificates stay as they were: {error}"),
        }
    }
}

fn start_log(arguments: &Arguments) {
    log::show_info(arguments.log_info);
    log::show_warning(arguments.log_warning);
    log::show_error(arguments.log_error);
    log::set_verbose_level(arguments.log_verbose);
    log::set_format(if arguments.log_is_iso8601 {
        log::LogFormat::Iso8601
    } else {
        log::LogFormat::Default
    });
    if let Some(path) = &arguments.log_file
        && let Err(error) = log::set_file(&path.to_string_lossy())
    {
        // As upstream: a server without its log is better than none.
        log::warning!("--log-file: {error}; the log goes to the console");
    }
    if !arguments.backend_directory.is_dir() {
        log::warning!(
            "the backend directory '{}' does not exist: set --backend-directory, or only backends that lie beside a model are found",
            arguments.backend_directory.display()
        );
    }
}

fn plugin_options(arguments: &Arguments) -> conch_ffi::host::HostOptions {
    conch_ffi::host::HostOptions {
        backend_directory: arguments.backend_directory.clone(),
        backend_config: arguments.backend_config.clone(),
        cache_directory: arguments.cache_directory.clone(),
        cache_config: conch_ffi::host::cache_config(&arguments.cache_config),
        repoagent_directory: arguments.repoagent_directory.clone(),
        ..conch_ffi::host::HostOptions::default()
    }
}

fn server_options(arguments: &Arguments, machine: &MachineFacts) -> conch_control::EngineOptions {
    let defaults = conch_control::EngineOptions::default();
    conch_control::EngineOptions {
        server_id: arguments.server_id.clone(),
        model_repositories: arguments.model_repositories.clone(),
        model_config_name: arguments.model_config_name.clone(),
        auto_complete: arguments.auto_complete,
        exit_on_error: arguments.exit_on_error,
        strict_readiness: arguments.strict_readiness,
        exit_timeout: Duration::from_secs(arguments.exit_timeout_secs),
        memory_limit_bytes: arguments
            .memory_limit_bytes
            .unwrap_or(defaults.memory_limit_bytes),
        memory_reserve_bytes: arguments.memory_reserve_bytes,
        queue_requests_max: arguments.queue_requests_max,
        stream_patience: Duration::from_millis(arguments.stream_patience_ms),
        admission: arguments.limit_flags.bounds,
        demand: arguments.limit_flags.demand(),
        shard_cpus: machine.shard_cpus.clone(),
        lowers_core_priority: arguments.lowers_core_priority,
        host_policies: arguments.host_policies.clone(),
        model_load_thread_count: arguments.model_load_thread_count,
        model_load_retry_count: arguments.model_load_retry_count,
        loads_config_once: arguments.loads_config_once,
        pinned_pool_bytes: arguments.pinned_pool_bytes,
        model_load_timeout: arguments.model_load_timeout_secs.map(Duration::from_secs),
        expands_config: arguments.expands_config,
        limits_rate: arguments.limits_rate,
        executions_max: arguments.limit_flags.executions_max,
        rate_capacities: arguments.rate_capacities.clone(),
        model_control_mode: arguments.model_control_mode,
        startup_models: arguments.startup_models.clone(),
        namespacing: arguments.namespacing,
        allow_client_shm: arguments.allow_client_shm,
        shm_owners: arguments.shm_owners.clone(),
        allow_metrics: arguments.metrics.is_enabled,
        allow_cpu_metrics: arguments.allow_cpu_metrics,
        counter_latencies: arguments.counter_latencies,
        metrics_interval: Duration::from_millis(arguments.metrics_interval_ms),
        ..defaults
    }
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// For how long a shard has to be calm before it returns to its CPU. A minute; tests do not wait
/// for it.
fn shard_calm() -> Duration {
    let milliseconds = environment("CONCH_SHARD_CALM_MS").and_then(|text| text.parse().ok());
    Duration::from_millis(milliseconds.unwrap_or(60_000))
}

fn frontend_options(
    arguments: &Arguments,
    machine: &MachineFacts,
) -> Result<conch_frontend::FrontendOptions, Error> {
    Ok(conch_frontend::FrontendOptions {
        http: endpoint(&arguments.http),
        grpc: endpoint(&arguments.grpc),
        metrics: endpoint(&arguments.metrics),
        sagemaker: cloud_flags::sagemaker(arguments, &environment)?,
        vertex_ai: cloud_flags::vertex_ai(arguments, &environment)?,
        grpc_compression: arguments.grpc_flags.compression,
        grpc_connections: arguments.grpc_flags.connections.clone(),
        grpc_inflated_bytes_max: arguments
            .grpc_flags
            .inflated_bytes_max
            .unwrap_or(conch_frontend::FrontendOptions::default().grpc_inflated_bytes_max),
        grpc_tls: arguments.grpc_flags.load_tls(arguments.grpc.is_enabled)?,
        shard_cpus: machine.shard_cpus.clone(),
        shard_affinity: arguments.shard_affinity,
        shard_calm: shard_calm(),
        shards_spin: machine.has_spare_cpus,
        connections_max: machine.connections_max,
        memory_stall_timeout: arguments.memory_stall_timeout,
        http_input_bytes_max: arguments.http_input_bytes_max,
        http_restrictions: arguments.http_restrictions.clone(),
        grpc_restrictions: arguments.grpc_restrictions.clone(),
        http_forward: arguments.http_forward.clone(),
        grpc_forward: arguments.grpc_forward.clone(),
        http_timeout_header: arguments.http_timeout_header.clone(),
        http_cors_origins: arguments.http_cors_origins.clone(),
        strict_integers: arguments.strict_integers,
        tenant_header: arguments.limit_flags.tenant_header.clone(),
        trace: arguments.trace.clone(),
        ..conch_frontend::FrontendOptions::default()
    })
}
