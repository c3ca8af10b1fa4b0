//! The server's executable: wiring only.
//!
//! Command line -> log -> what the machine allows -> models -> shards -> wait for a signal -> drain -> stop. Everything that can fail
//! before the first request fails here, with a message and exit code 1.
#![forbid(unsafe_code)]

mod access_flags;
mod cli;
mod cloud_flags;
mod flag_table;
mod flag_values;
mod flags;
mod grpc_flags;
mod limit_flags;
mod machine;
mod poll;
mod trace_flags;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_engine::server::Server;
use conch_engine::{ControlMode, Error, log};
use conch_frontend::Frontend;
use conch_memory::Sparse;
use conch_net::signal::{self, Signals};

use cli::{Arguments, Stop};
use cloud_flags::endpoint;
use machine::Machine;

// Buffers come and go on different threads all the time: mimalloc returns memory across threads without a lock. Only the executable may
// choose an allocator; a shared library must not.
#[global_allocator]
static ALLOCATOR: Sparse<mimalloc::MiMalloc> = Sparse::new(mimalloc::MiMalloc);

fn main() -> ExitCode {
    let arguments = match cli::parse(std::env::args().skip(1), &environment) {
        Ok(arguments) => arguments,
        Err(Stop::Help) => {
            print!("{}", flags::usage());
            return ExitCode::SUCCESS;
        }
        Err(Stop::Bad { flag, reason }) => {
            eprintln!("{}\nBad option: \"--{flag}\".\n{reason}", flags::usage());
            return ExitCode::FAILURE;
        }
        Err(Stop::Clash(reason)) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal comes. The error is the last line that the user sees.
fn run(arguments: &Arguments) -> Result<(), String> {
    start_log(arguments).map_err(|error| format!("error: --log-file: {error}"))?;
    for warning in &arguments.warnings {
        log::warning!("{warning}");
    }
    let machine = machine::prepare(arguments).map_err(|reason| format!("error: {reason}"))?;
    // Before the first thread of a model: a signal during a long load must not leave half-started backends behind.
    let signals = Signals::install(&machine::STOP_SIGNALS)
        .and_then(|signals| signal::survive_size_limits().map(|()| signals))
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
    let (server, _) = conch_ffi::start(
        server_options(arguments, &machine),
        plugin_options(arguments),
    )
    .map_err(creating)?;
    let frontend = match conch_frontend::start(network, Arc::clone(&server)) {
        Ok(frontend) => frontend,
        Err(error) => {
            let stopped = server.stop();
            let suffix = stopped
                .err()
                .map(|error| format!(" ({error})"))
                .unwrap_or_default();
            return Err(format!(
                "error: {} - {}{suffix}",
                error.code.name(),
                error.message
            ));
        }
    };
    let poller = (arguments.model_control_mode == ControlMode::Poll
        && arguments.repository_poll_secs > 0)
        .then(|| {
            let period = Duration::from_secs(arguments.repository_poll_secs);
            poll::Poller::start(Arc::clone(&server), period)
        })
        .transpose();
    let number = signals
        .wait()
        .map_err(|error| format!("error: waiting for signals: {error}"))?;
    log::info!("{} received, stopping", machine::signal_name(number));
    drop(poller);
    stop(arguments, &server, frontend)
}

/// Not ready at once, normal service for the drain delay, then finish what is in flight, all within one budget.
fn stop(arguments: &Arguments, server: &Server, mut frontend: Frontend) -> Result<(), String> {
    server.begin_drain();
    std::thread::sleep(Duration::from_secs(arguments.drain_delay_secs));
    let deadline = Instant::now() + Duration::from_secs(arguments.exit_timeout_secs);
    frontend.drain(deadline);
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

fn start_log(arguments: &Arguments) -> Result<(), Error> {
    log::show_info(arguments.log_info);
    log::show_warning(arguments.log_warning);
    log::show_error(arguments.log_error);
    log::set_verbose_level(arguments.log_verbose);
    log::set_format(if arguments.log_is_iso8601 {
        log::Format::Iso8601
    } else {
        log::Format::Default
    });
    match &arguments.log_file {
        Some(path) => log::set_file(&path.to_string_lossy()),
        None => Ok(()),
    }
}

fn plugin_options(arguments: &Arguments) -> conch_ffi::host::Options {
    conch_ffi::host::Options {
        backend_directory: arguments.backend_directory.clone(),
        backend_config: arguments.backend_config.clone(),
        cache_directory: arguments.cache_directory.clone(),
        cache_config: conch_ffi::host::cache_config(&arguments.cache_config),
        repoagent_directory: arguments.repoagent_directory.clone(),
        ..conch_ffi::host::Options::default()
    }
}

fn server_options(arguments: &Arguments, machine: &Machine) -> conch_engine::server::Options {
    let defaults = conch_engine::server::Options::default();
    conch_engine::server::Options {
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
        queue_requests_max: arguments.queue_requests_max,
        gate: arguments.limit_flags.bounds,
        demand: arguments.limit_flags.demand(),
        shard_cpus: machine.shard_cpus.clone(),
        lowers_core_priority: arguments.lowers_core_priority,
        host_policies: arguments.host_policies.clone(),
        model_load_thread_count: arguments.model_load_thread_count,
        model_load_retry_count: arguments.model_load_retry_count,
        expands_config: arguments.expands_config,
        limits_rate: arguments.limits_rate,
        executions_max: arguments.limit_flags.executions_max,
        rate_capacities: arguments.rate_capacities.clone(),
        model_control_mode: arguments.model_control_mode,
        startup_models: arguments.startup_models.clone(),
        namespacing: arguments.namespacing,
        allow_client_shm: arguments.allow_client_shm,
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

fn frontend_options(
    arguments: &Arguments,
    machine: &Machine,
) -> Result<conch_frontend::Options, Error> {
    Ok(conch_frontend::Options {
        http: endpoint(&arguments.http),
        grpc: endpoint(&arguments.grpc),
        metrics: endpoint(&arguments.metrics),
        sagemaker: cloud_flags::sagemaker(arguments, &environment)?,
        vertex_ai: cloud_flags::vertex_ai(arguments, &environment)?,
        grpc_compression: arguments.grpc_flags.compression,
        grpc_connections: arguments.grpc_flags.connections.clone(),
        grpc_tls: arguments.grpc_flags.load_tls(arguments.grpc.is_enabled)?,
        shard_cpus: machine.shard_cpus.clone(),
        shards_spin: machine.has_spare_cpus,
        connections_max: machine.connections_max,
        http_input_bytes_max: arguments.http_input_bytes_max,
        http_restrictions: arguments.http_restrictions.clone(),
        grpc_restrictions: arguments.grpc_restrictions.clone(),
        http_forward: arguments.http_forward.clone(),
        grpc_forward: arguments.grpc_forward.clone(),
        http_timeout_header: arguments.http_timeout_header.clone(),
        tenant_header: arguments.limit_flags.tenant_header.clone(),
        trace: arguments.trace.clone(),
        ..conch_frontend::Options::default()
    })
}
