//! Follows the repositories: asks the server to look at them, again and again.

use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use conch_control::server::Server;
use conch_log as log;

/// The thread that polls. Dropping it lets the thread end after the poll that it is at.
pub struct Poller {
    _stop: mpsc::Sender<()>,
}

impl Poller {
    /// Polls every `period`; the first time after one period, as the server has just read
    /// everything.
    ///
    /// # Errors
    /// If no thread is to be had.
    pub fn start(server: Arc<Server>, period: Duration) -> io::Result<Poller> {
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new()
            .name(String::from("poll"))
            .spawn(move || {
                server.loader_placement().apply();
                while stopped.recv_timeout(period) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Err(error) = server.poll_repositories() {
                        log::error!("failed to poll model repository: {error}");
                    }
                }
            })?;
        Ok(Poller { _stop: stop })
    }
}
