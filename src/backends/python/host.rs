//! The life of one instance's stub: started, served, started again when it ended, until the
//! instance goes or too many starts failed.
//!
//! ```text
//! Starting -> Running -> Starting (it ended; after a pause)
//!     |          |
//!     v          v
//!   Failed     Closed
//! ```
//!
//! One thread per instance goes through these states. While the process runs, it handles what the
//! stub posts; `execute` sends commands from the instance's own thread meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use conch_backend_sdk as sdk;
use conch_python_ipc::OffsetRing;
use sdk::{Code, Error};

use crate::calls::{Calls, InstanceCalls};
use crate::decode::CommandReply;
use crate::in_flight::InFlight;
use crate::launch::Launch;
use crate::process::{NoReply, StubProcess};
use crate::readiness::Readiness;
use crate::settings::Settings;
use crate::supervisor::Supervisor;

/// The longest pause between two starts.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A process that was killed ends at once, unless the kernel keeps it in a device.
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(10);

/// What all stubs of a model share.
pub(crate) struct ModelStubs {
    pub(crate) supervisor: Arc<Supervisor>,
    pub(crate) launch: Launch,
    pub(crate) settings: Settings,
    pub(crate) server: sdk::Server,
}

/// The stub of one instance.
pub(crate) struct StubHost {
    model: Arc<ModelStubs>,
    name: String,
    /// The command that makes the model.
    initialize: String,
    devices: sdk::DeviceAccess,
    state: Mutex<HostState>,
    changed: Condvar,
    pub(crate) in_flight: InFlight,
    pub(crate) readiness: Readiness,
    is_closing: AtomicBool,
    /// Starts, and ends without an execution before them, in a row.
    failures: AtomicU32,
}

#[derive(Clone)]
enum HostState {
    Starting,
    Running(Arc<StubProcess>),
    /// No more attempts are made.
    Failed(Error),
    Closed,
}

/// A running instance thread; dropping it ends the stub.
pub(crate) struct InstanceThread {
    pub(crate) host: Arc<StubHost>,
    thread: Option<JoinHandle<()>>,
}

impl InstanceThread {
    /// Starts the stub and has it make the model. Blocks until it has.
    ///
    /// # Errors
    /// What the model, or the system, refuses.
    pub(crate) fn start(
        model: &Arc<ModelStubs>,
        name: &str,
        initialize: String,
        devices: sdk::DeviceAccess,
    ) -> Result<InstanceThread, Error> {
        let host = Arc::new(StubHost {
            model: Arc::clone(model),
            name: name.to_owned(),
            initialize,
            devices,
            state: Mutex::new(HostState::Starting),
            changed: Condvar::new(),
            in_flight: InFlight::default(),
            readiness: Readiness::default(),
            is_closing: AtomicBool::new(false),
            failures: AtomicU32::new(0),
        });
        let running = Arc::clone(&host);
        let thread = std::thread::Builder::new()
            .name("py instance".to_owned())
            .spawn(move || running.run())
            .map_err(|error| Error::internal(format!("cannot start a thread: {error}")))?;
        let instance = InstanceThread {
            host,
            thread: Some(thread),
        };
        instance.host.process()?;
        Ok(instance)
    }
}

impl Drop for InstanceThread {
    fn drop(&mut self) {
        self.host.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl StubHost {
    /// The process that runs; waits while one is being started.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn process(&self) -> Result<Arc<StubProcess>, Error> {
        let mut state = self.lock();
        loop {
            match &*state {
                HostState::Running(process) if !process.is_dead() => {
                    return Ok(Arc::clone(process));
                }
                HostState::Failed(error) => return Err(error.clone()),
                HostState::Closed => return Err(self.unhealthy()),
                // It has ended and the instance's thread, which is about to say so, starts another.
                HostState::Running(_) | HostState::Starting => {}
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The process, if one runs and that can be seen without waiting.
    pub(crate) fn running_process(&self) -> Option<Arc<StubProcess>> {
        match &*self.state.try_lock().ok()? {
            HostState::Running(process) if !process.is_dead() => Some(Arc::clone(process)),
            _ => None,
        }
    }

    /// The process after one that has ended; waits until it is started.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn process_after(
        &self,
        ended: &Arc<StubProcess>,
    ) -> Result<Arc<StubProcess>, Error> {
        let is_seen = self.changed.wait_while(self.lock(), |state| match state {
            HostState::Running(process) => Arc::ptr_eq(process, ended),
            _ => false,
        });
        drop(is_seen);
        self.process()
    }

    /// Whether the instance can execute now.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn check_ready(&self) -> Result<(), Error> {
        let process = match &*self.lock() {
            HostState::Running(process) => Arc::clone(process),
            HostState::Failed(error) => return Err(error.clone()),
            HostState::Starting | HostState::Closed => return Err(self.unhealthy()),
        };
        if process.is_dead() {
            return Err(self.unhealthy());
        }
        self.readiness.check(&process)
    }

    /// Notes that an execution came back: the next failure is the first again.
    pub(crate) fn note_execution(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// In upstream's words.
    pub(crate) fn unhealthy(&self) -> Error {
        Error::internal(format!("Stub process '{}' is not healthy.", self.name))
    }

    fn run(&self) {
        let mut has_served = false;
        loop {
            match self.start_once() {
                // Also if the instance goes meanwhile: the process has to end.
                Ok((process, calls)) => {
                    has_served = true;
                    self.serve(&process, &calls);
                }
                Err(error) if !has_served => return self.set(HostState::Failed(error)),
                Err(error) => sdk::error!("{error}"),
            }
            if self.is_closing() {
                return self.set(HostState::Closed);
            }
            let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            let limit = self.model.settings.restart.limit;
            if failures > limit {
                let error = Error::new(
                    Code::Unavailable,
                    format!(
                        "Stub process '{}' is not healthy: it ended {failures} times in a row and \
                         is not started again (stub-restart-limit={limit})",
                        self.name
                    ),
                );
                sdk::error!("{error}");
                return self.set(HostState::Failed(error));
            }
            self.set(HostState::Starting);
            self.pause(failures - 1);
        }
    }

    /// Starts a process and has it make the model.
    fn start_once(&self) -> Result<(Arc<StubProcess>, Calls<'_>), Error> {
        let process = self
            .model
            .launch
            .start(&self.model.supervisor, &self.name, self.devices)?;
        let instance = InstanceCalls {
            in_flight: &self.in_flight,
            readiness: &self.readiness,
        };
        let calls = Calls::new(instance, &self.model.server);
        let limit = self.model.settings.start_timeout;
        let command = &self.initialize;
        let is_unwanted = || self.is_closing();
        let reply = command_while_serving(&process, &calls, command, limit, is_unwanted);
        let reply = reply.map_err(|failure| match failure {
            CommandFailure::NoReply(failure) => self.start_failure(&process, failure),
            CommandFailure::Refused(error) => error,
        });
        match reply {
            Ok(reply) => {
                self.readiness.begin(reply.is_ready);
                self.set(HostState::Running(Arc::clone(&process)));
                Ok((process, calls))
            }
            Err(error) => {
                process.kill();
                process.wait_for_end(KILL_LIMIT);
                self.in_flight.fail_all(&error);
                Err(error)
            }
        }
    }

    fn start_failure(&self, process: &StubProcess, failure: NoReply) -> Error {
        let (name, limit) = (&self.name, self.model.settings.start_timeout);
        Error::internal(match failure {
            NoReply::TimedOut => format!(
                "Failed to initialize the Python stub '{name}': 'initialize' took longer than {} s \
                 (initialize-timeout-seconds)",
                limit.unwrap_or_default().as_secs()
            ),
            NoReply::Ended | NoReply::NotTaken => format!(
                "Failed to initialize the Python stub '{name}': the process {}; the interpreter is \
                 '{}'",
                process.end().unwrap_or_default(),
                self.model.launch.interpreter.program.display()
            ),
            NoReply::Malformed => {
                format!("Failed to initialize the Python stub '{name}': malformed reply")
            }
        })
    }

    /// Handles what the stub posts until it ends or the instance goes.
    fn serve(&self, process: &Arc<StubProcess>, calls: &Calls<'_>) {
        calls.serve(process, || self.is_closing());
        if self.is_closing() {
            self.finalize(process, calls);
        } else {
            process.kill();
            process.wait_for_end(KILL_LIMIT);
            sdk::error!(
                "Stub process '{}' is unhealthy and it will be restarted: it {}",
                self.name,
                process.end().unwrap_or_default()
            );
        }
        // Whatever waits for the state sees the process gone before its requests fail.
        self.set(HostState::Starting);
        self.readiness.end();
        calls.close();
        self.in_flight.fail_all(&self.unhealthy());
    }

    /// Has the model end in its own time, and then the process.
    fn finalize(&self, process: &Arc<StubProcess>, calls: &Calls<'_>) {
        let limit = self.model.settings.stop_timeout;
        let deadline = Instant::now() + limit;
        let finalize = r#"{"k":"finalize"}"#;
        let _ = command_while_serving(process, calls, finalize, Some(limit), || false);
        let left = deadline.saturating_duration_since(Instant::now());
        if !process.wait_for_end(left) {
            sdk::warning!(
                "Stub process '{}' did not end within {} s and is killed (stub-timeout-seconds)",
                self.name,
                limit.as_secs()
            );
        }
        process.kill();
        process.wait_for_end(KILL_LIMIT);
    }

    /// Waits before the next start, unless the instance goes.
    fn pause(&self, failures: u32) {
        let first = self.model.settings.restart.pause;
        // The first start follows at once.
        let pause = match failures {
            0 => return,
            more => first.saturating_mul(1 << more.min(16)).min(PAUSE_MAX),
        };
        let deadline = Instant::now() + pause;
        let mut state = self.lock();
        while !self.is_closing() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        let state = self.lock();
        if let HostState::Running(process) = &*state {
            OffsetRing::of(&process.responses).interrupt();
        }
        self.changed.notify_all();
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    fn set(&self, state: HostState) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a command failed.
pub(crate) enum CommandFailure {
    NoReply(NoReply),
    /// The stub's own error.
    Refused(Error),
}

/// Sends a command and handles what the stub posts until the reply has come. Kills the process once
/// the reply `is_unwanted`, which is seen within seconds.
pub(crate) fn command_while_serving(
    process: &Arc<StubProcess>,
    calls: &Calls<'_>,
    command: &str,
    timeout: Option<Duration>,
    is_unwanted: impl Fn() -> bool,
) -> Result<CommandReply, CommandFailure> {
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| {
            let reply = send(process, command, timeout);
            is_answered.store(true, Ordering::SeqCst);
            OffsetRing::of(&process.responses).interrupt();
            reply
        });
        let has_reply = || is_answered.load(Ordering::SeqCst);
        calls.serve(process, || has_reply() || is_unwanted());
        if !has_reply() {
            process.kill();
        }
        answer
            .join()
            .unwrap_or(Err(CommandFailure::NoReply(NoReply::Malformed)))
    })
}

fn send(
    process: &StubProcess,
    command: &str,
    timeout: Option<Duration>,
) -> Result<CommandReply, CommandFailure> {
    let Some((offset, _)) = process.write(command.as_bytes(), 0) else {
        return Err(CommandFailure::Refused(Error::new(
            Code::Unavailable,
            "the shared memory has no room for a command (shm-max-byte-size)",
        )));
    };
    let reply = process
        .command(offset, timeout)
        .map_err(CommandFailure::NoReply)?;
    CommandReply::parse(&reply.text).map_err(CommandFailure::Refused)
}
