//! The rules in force, and the file that they come from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use conch_engine::Error;
use conch_log as log;

use super::file;
use super::rules::AuthRules;
use crate::tls::FileStamps;

/// The rules of `--auth-config`. Copies share them.
#[derive(Clone)]
pub struct AuthConfig {
    path: PathBuf,
    rules: Arc<ArcSwap<AuthRules>>,
    /// The file before it was read.
    stamps: FileStamps,
}

/// Reads the file again. Its owner calls it, from time to time or on a signal, on a thread that may
/// wait for files.
#[derive(Debug)]
pub struct AuthReloader {
    config: AuthConfig,
    /// The file as it was when it was last read.
    loaded: FileStamps,
    /// As it was at the last look.
    seen: FileStamps,
}

impl AuthConfig {
    /// Reads the rules of the file at `path`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a file that is missing, unreadable or of no use.
    pub fn load(path: &Path) -> Result<AuthConfig, Error> {
        let stamps = stamps(path);
        Ok(AuthConfig {
            stamps,
            path: path.to_owned(),
            rules: Arc::new(ArcSwap::from_pointee(read(path)?)),
        })
    }

    pub(super) fn rules(&self) -> Guard<Arc<AuthRules>> {
        self.rules.load()
    }
}

impl AuthReloader {
    pub fn new(config: AuthConfig) -> AuthReloader {
        AuthReloader {
            loaded: config.stamps.clone(),
            seen: config.stamps.clone(),
            config,
        }
    }

    /// Reads the file. Requests that come from then on are judged by what it says; a file of no use
    /// changes nothing, and is told once.
    pub fn reload(&mut self) {
        let config = &self.config;
        self.loaded = stamps(&config.path);
        self.seen = self.loaded.clone();
        match read(&config.path) {
            Ok(rules) => {
                log::info!("requests are judged by the rules as they are now: {rules:?}");
                config.rules.store(Arc::new(rules));
            }
            Err(error) => log::error!("the rules stay as they were: {}", error.message),
        }
    }

    /// Reads the file if it has changed, once it is the same for two calls: whoever writes it may
    /// not be done.
    pub fn reload_changed(&mut self) {
        let now = stamps(&self.config.path);
        let is_settled = now == self.seen;
        self.seen = now;
        if is_settled && self.seen != self.loaded {
            self.reload();
        }
    }
}

fn stamps(path: &Path) -> FileStamps {
    FileStamps::of([path])
}

impl fmt::Debug for AuthConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AuthConfig({})", self.path.display())
    }
}

fn read(path: &Path) -> Result<AuthRules, Error> {
    let useless = |reason: String| {
        let path = path.display();
        Error::invalid(format!("'{path}' (--auth-config) is of no use: {reason}"))
    };
    let text = conch_config::files::read(path).map_err(|cause| useless(cause.to_string()))?;
    file::parse(&text).map_err(useless)
}
