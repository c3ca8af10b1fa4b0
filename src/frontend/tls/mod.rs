//! TLS under gRPC; the only door to rustls.
//!
//! [`files`] reads certificates and keys at the start, [`handshake`] brings a connection to where it may speak, and [`session`] turns
//! its records into plain bytes and back. TLS 1.2 and 1.3, HTTP/2 by ALPN, no resumption: gRPC's connections live long, and what is not
//! kept cannot be stolen.

mod files;
mod handshake;
mod session;

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;

pub use files::TlsFiles;
pub(crate) use handshake::accept;
pub(crate) use session::Session;

/// What every connection of a listener shares.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    /// Says nothing of the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tls")
    }
}
