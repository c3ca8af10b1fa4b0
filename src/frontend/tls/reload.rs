//! Certificates that change while the server runs.
//!
//! Whoever owns a [`TlsReloader`] calls it, from time to time or on a signal, on a thread that may
//! wait for files. New connections use what was read, those that are open go on. What is of no use
//! changes nothing and is told once.

use conch_log as log;

use super::config::TlsConfig;
use super::files::TlsFiles;
use super::listener::TlsListener;
use super::stamp::FileStamps;

/// What a listener's TLS is made of, and where its connections have it from.
#[derive(Debug)]
pub struct TlsSource {
    pub listener: TlsListener,
    pub files: TlsFiles,
    pub verifies_clients: bool,
    pub config: TlsConfig,
}

/// Reads the files of listeners again.
#[derive(Debug)]
pub struct TlsReloader {
    watched: Vec<WatchedFiles>,
}

#[derive(Debug)]
struct WatchedFiles {
    source: TlsSource,
    /// The files as they were when they were last read.
    loaded: FileStamps,
    /// As they were at the last look.
    seen: FileStamps,
}

impl TlsReloader {
    pub fn new(sources: Vec<TlsSource>) -> TlsReloader {
        let watched = sources.into_iter().map(|source| WatchedFiles {
            loaded: source.config.stamps.clone(),
            seen: source.config.stamps.clone(),
            source,
        });
        TlsReloader {
            watched: watched.collect(),
        }
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Reads all files.
    pub fn reload(&mut self) {
        self.watched.iter_mut().for_each(WatchedFiles::reload);
    }

    /// Reads the files of listeners of which one has changed. Those that have changed since the
    /// last call are left for the next: a certificate and its key are two files, and whoever writes
    /// them may not be done.
    pub fn reload_changed(&mut self) {
        for watched in &mut self.watched {
            let now = watched.source.files.stamps();
            let is_settled = now == watched.seen;
            watched.seen = now;
            if is_settled && watched.seen != watched.loaded {
                watched.reload();
            }
        }
    }
}

impl WatchedFiles {
    fn reload(&mut self) {
        let source = &self.source;
        // From before they are read: what changes meanwhile is seen later.
        self.loaded = source.files.stamps();
        self.seen = self.loaded.clone();
        match TlsConfig::load(source.listener, &source.files, source.verifies_clients) {
            Ok(fresh) => {
                source.config.replace(&fresh);
                let service = source.listener.service();
                log::info!("new connections use the certificates as they are now ({service})");
            }
            Err(error) => log::error!("certificates stay as they were: {}", error.message),
        }
    }
}
