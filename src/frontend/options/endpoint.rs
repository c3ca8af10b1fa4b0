//! The address of a listener.

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: String,
    /// 0: any free port.
    pub port: u16,
    /// Share the port with other processes that ask for the same (SO_REUSEPORT).
    pub reuse_port: bool,
}
