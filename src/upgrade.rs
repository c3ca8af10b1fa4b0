//! Another executable in this one's place, without a lost request (SIGUSR2).
//!
//! The process starts the file that it was started from, as it is by then, with its own arguments
//! and the sockets that it listens on. Once the new process serves, this one leaves new connections
//! to it, answers what its own connections still ask, and ends. A new process that does not come to
//! that changes nothing here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use conch_log as log;
use conch_net::{Handover, Listener, ReplacementProcess};

/// Tells the process that this one replaces that it serves.
pub fn take_over(handover: Handover) {
    if let Err(error) = handover.serves() {
        log::warning!("the process that this one replaces does not hear that it serves: {error}");
    }
}

/// What a new process is started from.
pub struct Upgrade {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// The process that is being started, if there is one.
    under_way: Arc<Mutex<Option<u32>>>,
}

impl Upgrade {
    /// Remembers the file of this process: later the system may know it as deleted.
    pub fn new() -> Upgrade {
        let mut arguments = std::env::args_os();
        let called = arguments.next().unwrap_or_default();
        Upgrade {
            program: std::env::current_exe().unwrap_or_else(|_| called.into()),
            arguments: arguments.collect(),
            under_way: Arc::default(),
        }
    }

    /// Starts the new process. `replaced` is called with its number once it serves, on a thread
    /// that waits for that.
    pub fn begin(
        &self,
        listeners: &[(&'static str, Arc<Listener>)],
        replaced: impl FnOnce(u32) + Send + 'static,
    ) {
        let program = self.program.display();
        if std::process::id() == 1 {
            log::warning!("SIGUSR2 changes nothing: the end of process 1 would end its container");
            return;
        }
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = *under_way {
            log::warning!("process {process} is being started in this one's place already");
            return;
        }
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        let mut replacement = match ReplacementProcess::start(&mut command, listeners) {
            Ok(replacement) => replacement,
            Err(error) => {
                log::error!("{program} cannot be started in this process's place: {error}");
                return;
            }
        };
        let process = replacement.process_id();
        *under_way = Some(process);
        log::info!("{program} starts as process {process}, to take this one's place");
        let own = Arc::clone(&self.under_way);
        let wait = move || match replacement.wait_until_ready() {
            Ok(()) => replaced(process),
            Err(error) => {
                log::error!("process {process} does not serve, this one goes on: {error}");
                *own.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        };
        let spawned = thread::Builder::new()
            .name(String::from("upgrade"))
            .spawn(wait);
        if let Err(error) = spawned {
            conch_net::signal::ask_to_end(process);
            log::error!("process {process} is not waited for, this one goes on: {error}");
            *under_way = None;
        }
    }

    /// Asks a process that is being started to end: nobody is to take this one's place.
    pub fn abandon(&self) {
        let under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = *under_way {
            conch_net::signal::ask_to_end(process);
        }
    }
}
