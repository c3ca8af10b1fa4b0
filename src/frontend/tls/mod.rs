//! TLS under gRPC, HTTP and metrics; the only door to rustls.
//!
//! [`config`] is what connections share, [`files`] reads certificates and keys at the start and
//! [`reload`] later, [`listener`] is what differs between the listeners, [`handshake`] brings a
//! connection to where it may speak, [`handshakes`] bounds how many are on their way there,
//! [`session`] turns its records into plain bytes and back, in the memory of [`buffers`], and
//! [`stream`] is what HTTP/1 sees of that. TLS 1.2 and 1.3, HTTP/2 or HTTP/1 by ALPN, no
//! resumption: connections live long, and what is not kept cannot be stolen.
//!
//! [`resolver`] chooses the certificate for a host, [`names`] are those in a client's certificate,
//! and [`digest`] is a hash that rustls has anyway.
//! [`client`] is for the server's own requests, to a collector of spans.

mod buffers;
mod client;
mod config;
mod digest;
mod files;
mod handshake;
mod handshakes;
mod listener;
mod names;
mod reload;
mod resolver;
mod session;
mod stamp;
mod stream;
mod version_one;

pub(crate) use client::client_config;
pub use config::TlsConfig;
pub(crate) use digest::sha256;
pub use files::{HostFiles, TlsFiles};
pub(crate) use handshake::{accept, accept_in_time};
pub(crate) use handshakes::Handshakes;
pub use listener::TlsListener;
pub use reload::{TlsReloader, TlsSource};
pub use resolver::HostPattern;
pub(crate) use session::TlsSession;
pub(crate) use stamp::FileStamps;
pub(crate) use stream::ConnectionStream;
