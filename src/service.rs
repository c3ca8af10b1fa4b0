//! What the service manager that started the process is told: systemd, or another that sets
//! NOTIFY_SOCKET. Where nobody asks nothing is told.

use std::sync::atomic::{AtomicU8, Ordering};

use conch_log as log;
use conch_net::{ServiceManager, monotonic_us};

/// The manager, if there is one, and what it knows.
pub struct Service {
    manager: Option<ServiceManager>,
    phase: AtomicU8,
}

/// Only a service that is up reloads: told that it is ready, a manager would take a server that
/// still loads for one that serves, and one that stops for one that goes on.
const STARTING: u8 = 0;
const UP: u8 = 1;
const STOPPING: u8 = 2;

impl Service {
    /// The manager that listens at `address`.
    pub fn new(address: Option<String>) -> Service {
        let address = address.filter(|address| !address.is_empty());
        let manager = address.and_then(|address| match ServiceManager::at(&address) {
            Ok(manager) => Some(manager),
            Err(error) => {
                log::warning!("the service manager cannot be told anything: {error}");
                None
            }
        });
        Service {
            manager,
            phase: AtomicU8::new(STARTING),
        }
    }

    /// Models are being loaded, which may take minutes.
    pub fn loading(&self) {
        self.tell("STATUS=loading models");
    }

    /// The server serves at `urls`.
    pub fn ready(&self, urls: &str) {
        self.phase.store(UP, Ordering::Release);
        self.tell(&format!("READY=1\nSTATUS=serving: {urls}"));
    }

    /// Files are opened anew, until [`Service::reloaded`].
    pub fn reloading(&self) {
        if self.phase.load(Ordering::Acquire) == UP {
            self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_us()));
        }
    }

    pub fn reloaded(&self) {
        if self.phase.load(Ordering::Acquire) == UP {
            self.tell("READY=1");
        }
    }

    pub fn stopping(&self) {
        self.phase.store(STOPPING, Ordering::Release);
        self.tell("STOPPING=1\nSTATUS=finishing what is in flight");
    }

    /// Another process is the service from here on.
    pub fn left_to(&self, process: u32) {
        self.phase.store(STOPPING, Ordering::Release);
        self.tell(&format!("MAINPID={process}"));
    }

    fn tell(&self, assignments: &str) {
        let Some(manager) = &self.manager else {
            return;
        };
        if let Err(error) = manager.tell(assignments) {
            log::warning!("the service manager was not told '{assignments}': {error}");
        }
    }
}
