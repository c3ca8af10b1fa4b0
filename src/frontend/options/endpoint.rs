//! The address of a listener.

use std::io;
use std::path::Path;

use conch_net::{ListenAddress, Listener};

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

    /// Whether a socket that listens at `address` is the one that would be bound: it has the path,
    /// or the port, on any address.
    pub(crate) fn is_at(&self, address: &ListenAddress) -> bool {
        match (self.unix_path(), address) {
            (Some(own), ListenAddress::Unix(path)) => own == path,
            (None, ListenAddress::Tcp(address)) => self.port == address.port(),
            _ => false,
        }
    }

    /// Whether both cannot be bound at once: the same path, or the same host and port.
    pub fn conflicts_with(&self, other: &Endpoint) -> bool {
        match (self.unix_path(), other.unix_path()) {
            (Some(own), Some(others)) => own == others,
            (None, None) => {
                self.address == other.address && self.port == other.port && self.port != 0
            }
            _ => false,
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
    fn a_socket_is_known_by_its_port_or_path() {
        let tcp = |text: &str| ListenAddress::Tcp(text.parse().unwrap());
        let unix = |text: &str| ListenAddress::Unix(text.into());
        for (address, port, at, expected) in [
            ("0.0.0.0", 8000, tcp("[::]:8000"), true),
            ("127.0.0.1", 8000, tcp("127.0.0.1:8001"), false),
            ("unix:/s", 8000, tcp("[::]:8000"), false),
            ("unix:///s", 8000, unix("/s"), true),
            ("unix:/s", 8000, unix("/t"), false),
            ("0.0.0.0", 8000, unix("8000"), false),
        ] {
            assert_eq!(endpoint(address, port).is_at(&at), expected, "{at}");
        }
    }

    #[test]
    fn conflicts() {
        for (one, other, conflict) in [
            (("h", 1), ("h", 1), true),
            (("h", 0), ("h", 0), false),
            (("h", 1), ("h", 2), false),
            (("h", 1), ("g", 1), false),
            (("unix:/s", 1), ("unix:///s", 2), true),
            (("unix:/s", 1), ("unix:/t", 1), false),
            (("unix:/s", 1), ("/s", 1), false),
        ] {
            let (first, second) = (endpoint(one.0, one.1), endpoint(other.0, other.1));
            assert_eq!(first.conflicts_with(&second), conflict, "{one:?} {other:?}");
        }
    }
}
