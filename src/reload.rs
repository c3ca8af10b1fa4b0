//! The thread that reads the files of TLS and of callers again.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use std::{io, thread};

use conch_frontend::{AuthReloader, TlsReloader};

/// Where the thread is asked to read all files. It ends when the last copy is dropped, after what
/// it is at: files may lie where reading takes long, and nobody waits for that.
#[derive(Clone)]
pub struct FileReload(Option<SyncSender<Reloaded>>);

/// What is called when the files have been read.
type Reloaded = Box<dyn FnOnce() + Send>;

impl FileReload {
    /// Starts the thread, which also looks every `period` whether files have changed; zero: it only
    /// reads when asked. Where there is nothing to read there is none.
    ///
    /// # Errors
    /// If no thread is to be had.
    pub fn start(
        mut tls: TlsReloader,
        mut auth: Option<AuthReloader>,
        period: Duration,
    ) -> io::Result<FileReload> {
        if tls.is_empty() && auth.is_none() {
            return Ok(FileReload(None));
        }
        // A request that waits already is for the files as they are then, too.
        let (sender, requests) = sync_channel::<Reloaded>(1);
        thread::Builder::new()
            .name(String::from("files"))
            .spawn(move || {
                loop {
                    let request = match period.is_zero() {
                        true => requests.recv().map_err(RecvTimeoutError::from),
                        false => requests.recv_timeout(period),
                    };
                    match request {
                        Ok(reloaded) => {
                            tls.reload();
                            auth.iter_mut().for_each(AuthReloader::reload);
                            reloaded();
                        }
                        Err(RecvTimeoutError::Timeout) => {
                            tls.reload_changed();
                            auth.iter_mut().for_each(AuthReloader::reload_changed);
                        }
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            })?;
        Ok(FileReload(Some(sender)))
    }

    /// Asks for all files to be read, changed or not, and calls `reloaded` when they have been, at
    /// once where there are none. Does not block. While a request waits another adds nothing, and
    /// its `reloaded` is dropped.
    pub fn request(&self, reloaded: impl FnOnce() + Send + 'static) {
        match &self.0 {
            Some(sender) => {
                let _ = sender.try_send(Box::new(reloaded));
            }
            None => reloaded(),
        }
    }
}
