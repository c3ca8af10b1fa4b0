//! TLS under gRPC; the only door to rustls.
//!
//! [`config`] is what connections share, [`files`] reads certificates and keys at the start,
//! [`handshake`] brings a connection to where it may speak, [`handshakes`] bounds how many are on
//! their way there, and [`session`] turns its records into plain bytes and back. TLS 1.2 and 1.3,
//! HTTP/2 by ALPN, no resumption: gRPC's connections live long, and what is not kept cannot be
//! stolen.

mod config;
mod files;
mod handshake;
mod handshakes;
mod session;
mod version_one;

pub use config::TlsConfig;
pub use files::TlsFiles;
pub(crate) use handshake::accept;
pub(crate) use handshakes::Handshakes;
pub(crate) use session::TlsSession;
