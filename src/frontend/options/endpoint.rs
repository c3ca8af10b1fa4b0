//! The address of a listener.

use std::io;
use std::path::Path;

use conch_net::Listener;

/// What an address starts with that names a socket of the file system.
const UNIX_SCHEME: &str = "unix:";

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The name or address of a host, or `unix:<path>`.
    pub address: String,
    /// 0: any free port. A Unix socket has none.
    pub port: u16,
    /// Share the port with other processes that ask for the same (SO_REUSEPORT).
    pub reuse_port: bool,
}

impl Endpoint {
    /// The path of a Unix socket, written as clients of gRPC do: `unix:<path>`, or
    /// `unix://<absolute path>`.
    pub fn unix_path(&self) -> Option<&Path> {
        let path = self.address.strip_prefix(UNIX_SCHEME)?;
        let path = match path.strip_prefix("//") {
            Some(absolute) if absolute.starts_with('/') => absolute,
            _ => path,
        };
        Some(Path::new(path))
    }

    /// Listens; a Unix socket gets the permissions `unix_mode`. May block on the resolution of
    /// names.
    pub(crate) fn bind(&self, unix_mode: Option<u32>) -> io::Result<Listener> {
        match self.unix_path() {
            Some(path) => Listener::bind_unix(path, unix_mode),
            None => Listener::bind(&self.address, self.port, self.reuse_port),
        }
    }

    /// Looks whether [`Endpoint::bind`] would get the address, without listening.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self.unix_path() {
            Some(path) => Listener::check_unix(path),
            None => Listener::check(&self.address, self.port, self.reuse_port),
        }
    }

    /// What both would listen on, of two that differ in nothing that tells them apart.
    pub fn clash(&self, other: &Endpoint) -> Option<String> {
        match (self.unix_path(), other.unix_path()) {
            (Some(own), Some(others)) => (own == others).then(|| self.to_string()),
            (None, None) => {
                let is_same = self.address == other.address && self.port == other.port;
                (is_same && self.port != 0).then(|| self.to_string())
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.unix_path() {
            Some(path) => write!(formatter, "{UNIX_SCHEME}{}", path.display()),
            None => write!(formatter, "{}:{}", self.address, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str, port: u16) -> Endpoint {
        Endpoint {
            address: address.to_owned(),
            port,
            reuse_port: false,
        }
    }

    #[test]
    fn unix_sockets_are_told_by_their_scheme() {
        for (address, path, shown) in [
            ("unix:/run/c.sock", Some("/run/c.sock"), "unix:/run/c.sock"),
            ("unix:c.sock", Some("c.sock"), "unix:c.sock"),
            ("unix:///c.sock", Some("/c.sock"), "unix:/c.sock"),
            ("unix://c.sock", Some("//c.sock"), "unix://c.sock"),
            ("unix:", Some(""), "unix:"),
            ("unix", None, "unix:8000"),
            ("::1", None, "::1:8000"),
        ] {
            let endpoint = endpoint(address, 8000);
            assert_eq!(endpoint.unix_path(), path.map(Path::new), "{address}");
            assert_eq!(endpoint.to_string(), shown);
        }
    }

    #[test]
    fn clashes() {
        for (one, other, clash) in [
            (("h", 1), ("h", 1), Some("h:1")),
            (("h", 0), ("h", 0), None),
            (("h", 1), ("h", 2), None),
            (("h", 1), ("g", 1), None),
            (("unix:/s", 1), ("unix:///s", 2), Some("unix:/s")),
            (("unix:/s", 1), ("unix:/t", 1), None),
            (("unix:/s", 1), ("/s", 1), None),
        ] {
            let clashes = endpoint(one.0, one.1).clash(&endpoint(other.0, other.1));
            assert_eq!(clashes.as_deref(), clash, "{one:?} {other:?}");
        }
    }
}
