//! Looks whether the files of TLS have changed, again and again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use std::{io, thread};

use conch_frontend::TlsReloader;

/// The certificates of all listeners, for the threads that read them again. No connection waits for
/// the lock.
#[derive(Clone)]
pub struct Certificates {
    reloader: Arc<Mutex<TlsReloader>>,
}

/// The thread that looks. Dropping it lets the thread end after the look that it is at.
pub struct CertificateWatch {
    _stop: mpsc::Sender<()>,
}

impl Certificates {
    pub fn new(reloader: TlsReloader) -> Certificates {
        Certificates {
            reloader: Arc::new(Mutex::new(reloader)),
        }
    }

    /// Reads all of them, changed or not.
    pub fn reload(&self) {
        self.lock().reload();
    }

    /// Starts to look every `period`; none if that is zero, or nothing is to be looked at.
    ///
    /// # Errors
    /// If no thread is to be had.
    pub fn watch(&self, period: Duration) -> io::Result<Option<CertificateWatch>> {
        if period.is_zero() || self.lock().is_empty() {
            return Ok(None);
        }
        let (stop, stopped) = mpsc::channel();
        let own = self.clone();
        thread::Builder::new()
            .name(String::from("certificates"))
            .spawn(move || {
                while stopped.recv_timeout(period) == Err(mpsc::RecvTimeoutError::Timeout) {
                    own.lock().reload_changed();
                }
            })?;
        Ok(Some(CertificateWatch { _stop: stop }))
    }

    fn lock(&self) -> MutexGuard<'_, TlsReloader> {
        // Each step of the reloader leaves it as it should be.
        self.reloader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
