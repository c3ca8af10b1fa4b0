//! TLS under gRPC; the only door to rustls.
//!
//! [`files`] reads certificates and keys at the start, [`handshake`] brings a connection to where
//! it may speak, [`handshakes`] bounds how many are on their way there, and [`session`] turns its
//! records into plain bytes and back. TLS 1.2 and 1.3, HTTP/2 by ALPN, no resumption: gRPC's
//! connections live long, and what is not kept cannot be stolen.

mod files;
mod handshake;
mod handshakes;
mod session;
mod version_one;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;

pub use files::TlsFiles;
pub(crate) use handshake::accept;
pub(crate) use handshakes::Handshakes;
pub(crate) use session::TlsSession;

/// What every connection of a listener shares. Copies share it, too.
#[derive(Clone)]
pub struct TlsConfig {
    config: Arc<ArcSwap<ServerConfig>>,
}

impl TlsConfig {
    /// Has new connections use what `fresh` has; those that are open go on.
    pub fn replace(&self, fresh: &TlsConfig) {
        self.config.store(fresh.config());
    }

    fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

impl fmt::Debug for TlsConfig {
    /// Says nothing of the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tls")
    }
}
