//! The configuration that connections of a listener share.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;

use super::listener::TlsListener;
use super::stamp::FileStamps;

/// What every connection of a listener shares. Copies share it, too.
#[derive(Clone)]
pub struct TlsConfig {
    pub(super) listener: TlsListener,
    pub(super) config: Arc<ArcSwap<ServerConfig>>,
    /// Its files before they were read.
    pub(super) stamps: FileStamps,
}

impl TlsConfig {
    /// Has new connections use what `fresh` has; those that are open go on.
    pub fn replace(&self, fresh: &TlsConfig) {
        self.config.store(fresh.config());
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

impl fmt::Debug for TlsConfig {
    /// Says nothing of the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tls")
    }
}
