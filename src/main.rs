//! The server's executable: wiring only.
//!
//! Command line -> log -> what the machine allows -> models -> shards -> wait for a signal -> drain
//! -> stop. Everything that can fail before the first request fails here, with a message and exit
//! code 1.
#![forbid(unsafe_code)]

mod check;
mod client;
mod diagnosis;
mod examples;
mod machine;
mod poll;
mod reload;
mod service;
mod signals;
mod upgrade;
mod viewer;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use conch_cli::{Arguments, Command, EarlyExit, version};
use conch_control::server::Server;
use conch_control::{ControlMode, EngineOptions, StandaloneModel, StandaloneRepository};
use conch_engine::Error;
use conch_frontend::{AuthReloader, Frontend, FrontendOptions, ShardAffinity, TlsReloader};
use conch_log as log;
use conch_memory::{Reserve, program_code, unused};
use conch_net::signal::{self, Signals};
use conch_net::{Handover, PassedSocket};

use machine::MachineFacts;
use reload::FileReload;
use service::Service;
use signals::{Demand, SignalWatch};
use upgrade::Upgrade;

// Buffers come and go on different threads all the time: mimalloc returns memory across threads
// without a lock. Only the executable may choose an allocator; a shared library must not. When the
// system refuses memory, what cannot fail lives from a reserve.
#[global_allocator]
static ALLOCATOR: Reserve<mimalloc::MiMalloc> = Reserve::new(mimalloc::MiMalloc);

fn main() -> ExitCode {
    // Tests of what happens without memory; in other builds there is no such thing.
    #[cfg(debug_assertions)]
    if let Some(path) = environment("CONCH_REFUSE_MEMORY")
        && let Err(error) = conch_memory::refusals::follow(&path)
    {
        eprintln!("CONCH_REFUSE_MEMORY: {error}");
        return ExitCode::FAILURE;
    }
    unused::register(conch_memory::MIMALLOC);
    conch_net::limits::save_address_space();
    let words: Result<Vec<String>, _> = std::env::args_os()
        .skip(1)
        .map(std::ffi::OsString::into_string)
        .collect();
    let words = match words {
        Ok(words) => words,
        Err(word) => return refuse(&format!("Unexpected argument, not in UTF-8: {word:?}")),
    };
    let arguments = match conch_cli::parse_command(words, &environment) {
        Ok(Command::Serve(arguments)) => *arguments,
        Ok(Command::Check(command)) => return check::run(*command),
        Ok(Command::Doctor(command)) => return diagnosis::run(command),
        Ok(Command::Infer(options)) => return client::infer(&options),
        Ok(Command::Bench(options)) => return client::bench(&options),
        Ok(Command::Top(command)) => return viewer::run(&command),
        Ok(Command::Completions(shell)) => return print(&conch_cli::completions(shell)),
        Ok(Command::Manual) => return print(&conch_cli::manual()),
        Err(exit) => return exit_early(&exit),
    };
    let models = match conch_control::standalone_models(&arguments.model_files) {
        Ok(models) => models,
        Err(reason) => return refuse(&reason),
    };
    let outcome = run(arguments, &models);
    if let Err(StartFailure { message, is_logged }) = &outcome {
        // A user who counts the lines of an error on the console is to find one.
        let is_seen =
            *is_logged && log::is_shown(log::LogLevel::Error) && log::settings().file.is_empty();
        if !is_seen {
            log::print(log::LogLevel::Error, message);
        }
    }
    log::flush(log::EXIT_FLUSH);
    if outcome.is_err() {
        // Threads may still be inside of plug-ins, whose exit handlers must not run then.
        signal::end_process(1);
    }
    ExitCode::SUCCESS
}

/// What the command line asks for in place of serving, or what is wrong with it.
fn exit_early(exit: &EarlyExit) -> ExitCode {
    match exit {
        EarlyExit::Bad { flag, reason } if flag.is_empty() => refuse(reason),
        EarlyExit::Bad { flag, reason } => refuse(&format!("Bad option: \"--{flag}\".\n{reason}")),
        EarlyExit::BadCommand(reason) => {
            eprintln!("{reason}");
            ExitCode::from(client::USAGE)
        }
        EarlyExit::Clash(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
        exit => print(&conch_cli::text(exit).unwrap_or_default()),
    }
}

fn refuse(reason: &str) -> ExitCode {
    eprintln!("{reason}");
    eprintln!("'conch --help' lists all options.");
    ExitCode::FAILURE
}

/// Whoever reads may be gone.
fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
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
fn run(arguments: Arguments, models: &[StandaloneModel]) -> Result<(), StartFailure> {
    let (passed, handover) = passed_sockets()?;
    let upgrade = Upgrade::new();
    start_reporting(&arguments)?;
    let service = Arc::new(Service::new(environment("NOTIFY_SOCKET")));
    let machine = machine::prepare(&arguments).map_err(|reason| format!("error: {reason}"))?;
    // Before the first thread of a model: a signal during a long load must not leave half-started
    // backends behind.
    let signals = install_signals().map_err(handlers_failure)?;
    let network = network_options(&arguments, &machine, passed)
        .map_err(|error| format!("error: {} - {}", error.code.name(), error.message))?;
    // Loading may take minutes. It is looked at again when the models are there, by then listening.
    conch_frontend::check_addresses(&network).map_err(network_failure)?;
    let poll_period = arguments.poll_period();
    let sources = conch_cli::tls_sources(&arguments, &network);
    let auth = network.auth.clone().map(AuthReloader::new);
    let period = arguments.file_reload;
    let (engine, _repository) = with_standalone(arguments.engine, models)?;
    let times = StopTimes {
        drain_delay: arguments.drain_delay,
        exit_timeout: engine.exit_timeout,
    };
    let stop_request = Arc::clone(&engine.stop_request);
    let files = FileReload::start(TlsReloader::new(sources), auth, period)
        .map_err(|error| format!("error: cannot start a thread: {error}"))?;
    let watch = SignalWatch::start(
        signals,
        times.exit_timeout,
        Arc::clone(&stop_request),
        reload(files, Arc::clone(&service)),
    )
    .map_err(|error| format!("error: cannot start a thread: {error}"))?;
    let options = EngineOptions {
        shard_cpus: machine.shard_cpus,
        pins_shards: network.shard_affinity != ShardAffinity::Set,
        ..engine
    };
    let restrictions = network.http_restrictions.clone();
    service.loading();
    let started = conch_ffi::start(options, arguments.plugins);
    watch.started();
    let server = match started {
        Ok((server, _)) => server,
        // As it was asked to.
        Err(_) if stop_request.load(Ordering::Relaxed) => return Ok(()),
        Err(error) => {
            let (code, reason) = (error.code.name(), error.message);
            return Err(format!("error: creating server: {code} - {reason}").into());
        }
    };
    let frontend = start_network(network, &server)?;
    let poller = poll_period
        .map(|period| poll::Poller::start(Arc::clone(&server), period))
        .transpose();
    let urls = frontend.addresses().urls();
    match server.check_serving() {
        Ok(()) => log::info!("serving: {urls}"),
        Err(_) => log::warning!("no model is served, see the error above; listening: {urls}"),
    }
    service.ready(&urls);
    if let Some(handover) = handover {
        upgrade::take_over(handover);
    }
    examples::print(&server, frontend.addresses(), &restrictions, models);
    give_back();
    let replacement = wait_for_end(&watch, &frontend, &upgrade);
    drop(poller);
    let ended = match replacement {
        None => {
            service.stopping();
            stop(&times, &server, frontend)
        }
        Some(process) => {
            service.left_to(process);
            leave(times, &server, frontend)
        }
    };
    ended.map_err(StartFailure::from)
}

/// Leaves all clients to another process, and stops.
fn leave(times: StopTimes, server: &Server, mut frontend: Frontend) -> Result<(), String> {
    let deadline = Instant::now() + times.exit_timeout;
    frontend.retire(deadline, |seconds| server.log_in_flight(seconds));
    // Nobody has to be told to look elsewhere.
    let times = StopTimes {
        drain_delay: Duration::ZERO,
        ..times
    };
    stop(&times, server, frontend)
}

/// The network side. Where it does not start, the server ends.
fn start_network(network: FrontendOptions, server: &Arc<Server>) -> Result<Frontend, StartFailure> {
    conch_frontend::start(network, Arc::clone(server)).map_err(|error| {
        let failure = network_failure(error);
        match server.stop() {
            Ok(()) => failure,
            Err(error) => format!("{} ({error})", failure.message).into(),
        }
    })
}

/// What the start needed goes to the system: the main thread does nothing from here on.
fn give_back() {
    unused::give_to_system();
    program_code::unmap();
}

/// Blocks until the server is to end: by a signal, or because the process with this number serves
/// in its place.
fn wait_for_end(watch: &SignalWatch, frontend: &Frontend, upgrade: &Upgrade) -> Option<u32> {
    loop {
        match watch.wait() {
            Demand::Stop(number) => {
                log::info!("{} received, stopping", signals::signal_name(number));
                upgrade.abandon();
                return None;
            }
            Demand::Upgrade => {
                let sender = watch.sender();
                upgrade.begin(&frontend.listeners(), move |process| {
                    // Nobody listens where the process ends anyway.
                    let _ = sender.send(Demand::Leave(process));
                });
            }
            Demand::Leave(process) => {
                log::info!("process {process} serves in this one's place");
                return Some(process);
            }
        }
    }
}

/// The sockets that the process was started with, and the word that the one waits for which hands
/// them over.
fn passed_sockets() -> Result<(Vec<PassedSocket>, Option<Handover>), String> {
    let mut passed = conch_net::take_sockets(&environment)
        .map_err(|error| format!("error: LISTEN_FDS: {error}"))?;
    let mut handover = Handover::take(&environment).map_err(|error| format!("error: {error}"))?;
    if let Some(handover) = &mut handover {
        passed.append(&mut handover.sockets);
    }
    Ok((passed, handover))
}

/// The options with the models that lie in no repository, and the repository that they are laid out
/// in, which goes with the value.
fn with_standalone(
    mut engine: EngineOptions,
    models: &[StandaloneModel],
) -> Result<(EngineOptions, Option<StandaloneRepository>), String> {
    if models.is_empty() {
        return Ok((engine, None));
    }
    let parent = std::env::temp_dir();
    let repository = StandaloneRepository::lay_out(models, &parent, engine.expands_config)
        .map_err(|error| format!("error: {} - {}", error.code.name(), error.message))?;
    engine.model_repositories.push(repository.path());
    let is_named = engine.startup_models != ["*"];
    if engine.model_control_mode == ControlMode::Explicit && is_named {
        // Who names a file wants it served, without having to name it twice.
        let names = models.iter().map(|model| model.name.clone());
        engine.startup_models.extend(names);
        engine.startup_models.sort();
        engine.startup_models.dedup();
    }
    Ok((engine, Some(repository)))
}

/// Says what the command line left to say, and where log lines go from here on.
fn start_reporting(arguments: &Arguments) -> Result<(), String> {
    // Before the log is set up, which may send lines to a file: what is on the console is to have
    // the form of the log, too.
    log::set_format(arguments.log.format);
    for warning in &arguments.console_warnings {
        log::print(log::LogLevel::Warning, warning);
    }
    log::tell_panics();
    signal::drain_before_crash(log::pending).map_err(handlers_failure)?;
    start_log(arguments);
    log::info!("{}", version());
    for warning in &arguments.warnings {
        log::warning!("{warning}");
    }
    Ok(())
}

/// The signals that stop the server or reload its files. Others that would end it are survived.
fn install_signals() -> std::io::Result<Signals> {
    let [interrupt, terminate] = signal::STOPS;
    let signals = Signals::install(&[interrupt, terminate, signal::RELOAD, signal::UPGRADE])?;
    signal::survive_size_limits()?;
    signal::survive_stray_signals()?;
    Ok(signals)
}

fn handlers_failure(error: std::io::Error) -> String {
    format!("error: cannot install signal handlers: {error}")
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

struct StopTimes {
    /// Of normal service before the end begins.
    drain_delay: Duration,
    /// For what is in flight and for the server's end.
    exit_timeout: Duration,
}

/// Not ready at once, normal service for the drain delay, then finish what is in flight, all within
/// one budget.
fn stop(times: &StopTimes, server: &Server, mut frontend: Frontend) -> Result<(), String> {
    server.begin_drain();
    std::thread::sleep(times.drain_delay);
    let deadline = Instant::now() + times.exit_timeout;
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
/// has the certificates and the rules of callers read again.
fn reload(files: FileReload, service: Arc<Service>) -> impl Fn() + Send + 'static {
    move || {
        service.reloading();
        match log::reopen_file() {
            Ok(()) => log::info!("SIGHUP received, the log file is open anew"),
            Err(error) => log::error!("SIGHUP received, the log goes on as before: {error}"),
        }
        let service = Arc::clone(&service);
        files.request(move || service.reloaded());
    }
}

fn start_log(arguments: &Arguments) {
    if let Err(error) = log::configure(&arguments.log) {
        // As upstream: a server without its log is better than none.
        log::warning!("--log-file: {error}; the log goes to the console");
    }
    let backends = &arguments.plugins.backend_directory;
    if !backends.is_dir() {
        log::warning!(
            "the backend directory '{}' does not exist: set --backend-directory, \
             or only backends that lie beside a model are found",
            backends.display()
        );
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

fn network_options(
    arguments: &Arguments,
    machine: &MachineFacts,
    passed_sockets: Vec<PassedSocket>,
) -> Result<FrontendOptions, Error> {
    Ok(FrontendOptions {
        passed_sockets,
        shard_cpus: machine.shard_cpus.clone(),
        shard_calm: shard_calm(),
        shards_spin: machine.has_spare_cpus,
        connections_max: machine.connections_max,
        ..conch_cli::frontend_options(arguments, &environment)?
    })
}
