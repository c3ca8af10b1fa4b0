//! The thread that starts stub processes, sees them end, and brings what they print into the log.
//!
//! One per backend. It lives as long as the backend, since the kernel ends a stub with the thread
//! that started it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use conch_backend_sdk as sdk;
use sdk::Error;

use crate::log_pipe::LogPipe;
use crate::process::StubProcess;

/// How often shared memory that is not used is given back.
const TRIM_PERIOD: Duration = Duration::from_secs(5);

/// A process may be stopped (SIGSTOP) for that long; after it, or some seconds later, it is killed.
/// Upstream takes a stub for dead that does not move for a second.
const STOPPED_LIMIT: Duration = Duration::from_secs(5);

/// Starts and watches processes. Dropping it ends its thread; no process is left then.
pub(crate) struct Supervisor {
    requests: Mutex<Option<Sender<StartRequest>>>,
    waker: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A process to start.
pub(crate) struct StartRequest {
    pub(crate) command: Command,
    /// Its standard input.
    pub(crate) socket: OwnedFd,
    /// The name of its lines in the log.
    pub(crate) label: String,
    /// What is told of its end.
    pub(crate) process: Arc<StubProcess>,
    pub(crate) started: SyncSender<io::Result<()>>,
}

/// A process that runs, or ended and was not seen to.
struct Watched {
    child: Child,
    file: OwnedFd,
    stdout: LogPipe<ChildStdout>,
    stderr: LogPipe<ChildStderr>,
    process: Arc<StubProcess>,
    pid: Pid,
    /// Since when it was seen stopped.
    stopped_since: Option<Instant>,
}

impl Supervisor {
    /// # Errors
    /// `Internal` if the system has no thread or descriptor.
    pub(crate) fn start() -> Result<Supervisor, Error> {
        let waker = rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
        );
        let waker = Arc::new(waker.map_err(|error| failed(&error.into()))?);
        let (requests, received) = channel();
        let loop_waker = Arc::clone(&waker);
        let thread = std::thread::Builder::new()
            .name("py supervisor".to_owned())
            .spawn(move || run(&received, &loop_waker))
            .map_err(|error| failed(&error))?;
        Ok(Supervisor {
            requests: Mutex::new(Some(requests)),
            waker,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Starts a process; returns once it runs.
    ///
    /// # Errors
    /// What the system refuses, such as an interpreter that is not there.
    pub(crate) fn launch(
        &self,
        command: Command,
        socket: OwnedFd,
        label: String,
        process: Arc<StubProcess>,
    ) -> io::Result<()> {
        let (started, answer) = sync_channel(1);
        let request = StartRequest {
            command,
            socket,
            label,
            process,
            started,
        };
        let ended = || io::Error::other("the supervisor of Python processes has ended");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests
            .as_ref()
            .ok_or_else(ended)?
            .send(request)
            .map_err(|_| ended())?;
        drop(requests);
        wake(&self.waker);
        answer.recv().map_err(|_| ended())?
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let requests = &mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests = None;
        wake(&self.waker);
        let thread = &mut *self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

fn wake(waker: &OwnedFd) {
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}

fn failed(error: &io::Error) -> Error {
    Error::internal(format!("cannot watch Python processes: {error}"))
}

fn run(requests: &Receiver<StartRequest>, waker: &OwnedFd) {
    let mut all: Vec<Watched> = Vec::new();
    loop {
        wait(&all, waker);
        let _ = rustix::io::read(waker, &mut [0; 8]);
        loop {
            match requests.try_recv() {
                Ok(request) => start(request, &mut all),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return end(all),
            }
        }
        for watched in &mut all {
            watched.stdout.forward();
            watched.stderr.forward();
            watched.process.trim();
            watched.end_if_stopped();
        }
        all.retain_mut(|watched| !watched.has_ended());
    }
}

/// Blocks until there is something to do.
fn wait(all: &[Watched], waker: &OwnedFd) {
    let mut polled = Vec::with_capacity(1 + 3 * all.len());
    polled.push(PollFd::new(waker, PollFlags::IN));
    for watched in all {
        polled.push(PollFd::new(&watched.file, PollFlags::IN));
        polled.extend(watched.stdout.file().map(readable));
        polled.extend(watched.stderr.file().map(readable));
    }
    let timeout = Timespec::try_from(TRIM_PERIOD).ok();
    let timeout = timeout.filter(|_| !all.is_empty());
    // An error is a signal, or a lack of memory: the loop looks once more.
    if rustix::event::poll(&mut polled, timeout.as_ref()).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn readable<F: AsFd>(file: &F) -> PollFd<'_> {
    PollFd::new(file, PollFlags::IN)
}

fn start(request: StartRequest, all: &mut Vec<Watched>) {
    let StartRequest {
        mut command,
        socket,
        label,
        process,
        started,
    } = request;
    command
        .stdin(Stdio::from(socket))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let watched = command
        .spawn()
        .and_then(|child| watch(child, &label, &process));
    // What it holds, the stub's end of the socket for one, is closed before the caller goes on.
    drop(command);
    let outcome = watched.map(|watched| all.push(watched));
    let _ = started.send(outcome);
}

fn watch(mut child: Child, label: &str, process: &Arc<StubProcess>) -> io::Result<Watched> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process without an id"))?;
    let file = rustix::process::pidfd_open(pid, PidfdFlags::empty());
    let (Ok(file), Some(stdout), Some(stderr)) = (file, child.stdout.take(), child.stderr.take())
    else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(io::Error::other("the process cannot be watched"));
    };
    process.has_started(pid);
    Ok(Watched {
        child,
        file,
        stdout: LogPipe::new(stdout, label),
        stderr: LogPipe::new(stderr, label),
        process: Arc::clone(process),
        pid,
        stopped_since: None,
    })
}

impl Watched {
    /// Kills a process that is stopped and stays so: nothing would answer its requests.
    fn end_if_stopped(&mut self) {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let is_stopped = matches!(
            rustix::process::waitid(WaitId::Pid(self.pid), options),
            Ok(Some(_))
        );
        if !is_stopped {
            self.stopped_since = None;
            return;
        }
        let since = *self.stopped_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= STOPPED_LIMIT {
            sdk::error!("a stopped Python stub ({}) is killed", self.pid);
            self.process.kill();
        }
    }

    /// Whether the process is gone; its owner is told then.
    fn has_ended(&mut self) -> bool {
        // What it started and left ends with it. As long as its status is not taken, its number is
        // that of its group and of no other.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(_)) = rustix::process::waitid(WaitId::Pid(self.pid), options) {
            let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        }
        let status = match self.child.try_wait() {
            Ok(None) => return false,
            Ok(Some(status)) => Some(status),
            // Somebody else in this process took its status.
            Err(_) => None,
        };
        self.stdout.finish();
        self.stderr.finish();
        self.process.has_ended(status);
        true
    }
}

/// Ends what is left: nothing, unless an instance was lost.
fn end(all: Vec<Watched>) {
    for mut watched in all {
        watched.process.kill();
        let status = watched.child.wait().ok();
        watched.process.has_ended(status);
    }
}
