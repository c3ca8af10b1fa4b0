//! Who is at the other end of a connection.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// The other end of a connection, as far as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Address(IpAddr),
    /// The user of this machine at the other end of a Unix socket.
    User(u32),
    /// It is gone already.
    Unknown,
}

impl Peer {
    pub(crate) fn of(socket: RawFd) -> Peer {
        if let Ok(address) = conch_net::peer_address(socket) {
            return Peer::Address(address.to_canonical());
        }
        match conch_net::peer_user(socket) {
            Ok(user) => Peer::User(user),
            Err(_) => Peer::Unknown,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => address.fmt(f),
            Peer::User(user) => write!(f, "user:{user}"),
            Peer::Unknown => f.write_str("unknown"),
        }
    }
}
