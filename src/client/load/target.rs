//! Where requests go, and what they are.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use bytes::Bytes;
use conch_executor::Socket;

use crate::url::ServerUrl;

/// How a server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadProtocol {
    /// One request at a time on each connection.
    Http,
    /// Many calls at a time on each connection.
    Grpc,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// What one connection needs to know about the requests it sends.
#[derive(Debug, Clone)]
pub struct LoadTarget {
    pub protocol: LoadProtocol,
    pub address: LoadAddress,
    /// What a `Host` header says.
    pub host: String,
    pub path: String,
    /// The whole body: JSON and tensors, or one framed gRPC message.
    pub body: Bytes,
    /// Length of the JSON in front of binary tensors, where there are any.
    pub json_bytes: Option<usize>,
    /// Names and values that every request has.
    pub headers: Vec<(String, String)>,
    /// Calls that are open on a connection, over gRPC.
    pub calls_max: usize,
}

impl LoadAddress {
    /// Where the server of `url` listens.
    ///
    /// # Errors
    /// It has no address, or speaks TLS.
    pub fn of(url: &ServerUrl) -> Result<LoadAddress, String> {
        if url.is_encrypted() {
            return Err(format!(
                "load goes to http:// or unix:, not to {}",
                url.shown()
            ));
        }
        if let Some(path) = url.socket() {
            return Ok(LoadAddress::Unix(path.clone()));
        }
        let authority = url.authority();
        let resolved = match url.has_port() {
            true => authority.to_socket_addrs(),
            false => format!("{authority}:80").to_socket_addrs(),
        };
        let failed = |cause: &dyn std::fmt::Display| format!("cannot find {authority}: {cause}");
        let mut addresses = resolved.map_err(|cause| failed(&cause))?;
        let address = addresses.next();
        address
            .map(LoadAddress::Tcp)
            .ok_or_else(|| failed(&"no address"))
    }

    /// Connects, which blocks: the server is near, or the run has not begun.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn connect(&self) -> std::io::Result<Socket> {
        let descriptor = match self {
            LoadAddress::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                OwnedFd::from(stream)
            }
            LoadAddress::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                OwnedFd::from(stream)
            }
        };
        Ok(Socket::new(descriptor))
    }
}
