//! Handing listening sockets from a process to the one that takes its place, which it starts: their
//! descriptors stay open across the start, and variables name them. By libc is what the child does
//! before it becomes another program.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::listener::Listener;
use crate::passed::PassedSocket;

/// `<name>:<descriptor>`, with commas between them.
const SOCKETS: &str = "CONCH_HANDED_SOCKETS";
/// The descriptor by which the new process tells that it serves.
const READY: &str = "CONCH_HANDED_READY";
/// The process that hands over: who starts a child of its own later leaves the variables to it, and
/// none of the descriptors.
const FROM: &str = "CONCH_HANDED_FROM";
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// A process that was started to take this one's place.
#[derive(Debug)]
pub struct ReplacementProcess {
    child: Child,
    ready: File,
}

/// What the new process gets.
#[derive(Debug)]
pub struct Handover {
    pub sockets: Vec<PassedSocket>,
    ready: File,
}

impl ReplacementProcess {
    /// Starts `command` with the listeners, each under its name.
    ///
    /// # Errors
    /// Of the start of a process.
    pub fn start(
        command: &mut Command,
        listeners: &[(&str, Arc<Listener>)],
    ) -> io::Result<ReplacementProcess> {
        let (ready, told) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let named =
            |(name, listener): &(&str, Arc<Listener>)| format!("{name}:{}", listener.as_raw_fd());
        let sockets: Vec<String> = listeners.iter().map(named).collect();
        command
            .env(SOCKETS, sockets.join(","))
            .env(READY, told.as_raw_fd().to_string())
            .env(FROM, std::process::id().to_string());
        let listening = listeners.iter().map(|(_, listener)| listener.as_raw_fd());
        let inherited: Vec<RawFd> = listening.chain([told.as_raw_fd()]).collect();
        let keep_open = move || {
            inherited.iter().try_for_each(|descriptor| {
                // SAFETY: async-signal-safe, and passes numbers only.
                match unsafe { libc::fcntl(*descriptor, libc::F_SETFD, 0) } {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            })
        };
        // Only the child has them open across the start: another thread that starts a program
        // meanwhile passes none of them on.
        // SAFETY: between fork and exec it makes system calls only, and allocates nothing.
        unsafe { command.pre_exec(keep_open) };
        let child = command.spawn()?;
        Ok(ReplacementProcess {
            child,
            ready: ready.into(),
        })
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Blocks until the process serves, or has ended without that. How long that takes is its own
    /// affair, such as loading models.
    ///
    /// # Errors
    /// It has ended, or is about to; how, if the system tells.
    pub fn wait_until_ready(&mut self) -> io::Result<()> {
        let mut word = [0];
        match self.ready.read(&mut word) {
            Ok(1) => Ok(()),
            Ok(_) => {
                let status = self.child.wait()?;
                Err(io::Error::other(format!("it ended before that: {status}")))
            }
            Err(error) => Err(error),
        }
    }
}

impl Handover {
    /// Takes what the process that started this one hands over; none if it does not. To be called
    /// once, before the process opens what it keeps.
    ///
    /// # Errors
    /// A variable makes no sense, or a descriptor is no socket that listens.
    pub fn take(environment: &dyn Fn(&str) -> Option<String>) -> io::Result<Option<Handover>> {
        let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().to_string());
        let (Some(from), Some(ready)) = (environment(FROM), environment(READY)) else {
            return Ok(None);
        };
        if parent != Some(from) || IS_TAKEN.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let refuse = |what: &str| {
            let text = format!("{SOCKETS} and {READY} make no sense: {what}");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let ready: RawFd = ready.parse().map_err(|_| refuse(&ready))?;
        let mut sockets = Vec::new();
        let text = environment(SOCKETS).unwrap_or_default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, number) = part.split_once(':').ok_or_else(|| refuse(part))?;
            let number: RawFd = number.parse().map_err(|_| refuse(part))?;
            let listener = Listener::adopt(own(number)?)?;
            sockets.push(PassedSocket {
                name: name.to_owned(),
                listener: Arc::new(listener),
            });
        }
        Ok(Some(Handover {
            sockets,
            ready: own(ready)?.into(),
        }))
    }

    /// Tells the process that handed over that this one serves.
    ///
    /// # Errors
    /// It is gone.
    pub fn serves(mut self) -> io::Result<()> {
        self.ready.write_all(b"\n")
    }
}

/// Owns a descriptor that was left open for this process, and for none that it starts.
fn own(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: passes numbers only; one that is no descriptor is an error.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open. The process that started this one left it for it to own, and says so by
    // its variables; they are taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
