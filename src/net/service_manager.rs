//! Telling whoever started the process how far it is, as systemd is told (`sd_notify`): datagrams
//! to the socket NOTIFY_SOCKET.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What a manager may take to make room for a datagram.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a service manager listens.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl ServiceManager {
    /// The manager at `address`, a path or the name of an abstract socket after `@`.
    ///
    /// # Errors
    /// Of an address of another kind; no descriptor is left.
    pub fn at(address: &str) -> io::Result<ServiceManager> {
        let address = match (address.strip_prefix('@'), address.starts_with('/')) {
            (Some(name), _) => SocketAddr::from_abstract_name(name)?,
            (None, true) => SocketAddr::from_pathname(address)?,
            (None, false) => {
                let why = format!("'{address}' is neither a path nor an abstract socket");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(ServiceManager { socket, address })
    }

    /// Sends assignments, one a line. Waits two seconds at most.
    ///
    /// # Errors
    /// Nobody takes them.
    pub fn tell(&self, assignments: &str) -> io::Result<()> {
        let sent = self
            .socket
            .send_to_addr(assignments.as_bytes(), &self.address);
        sent.map(drop)
    }
}

/// Microseconds of the clock by which a manager tells one reload from another.
pub fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000) + part(now.tv_nsec) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_by_path_and_by_abstract_name() {
        let name = format!("conch-net-manager-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let mut received = [0; 64];
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        for (address, manager) in [
            (path.to_str().unwrap(), UnixDatagram::bind(&path).unwrap()),
            (
                format!("@{name}").as_str(),
                UnixDatagram::bind_addr(&abstract_address).unwrap(),
            ),
        ] {
            let told = ServiceManager::at(address).unwrap();
            told.tell("READY=1\nSTATUS=x").unwrap();
            let length = manager.recv(&mut received).unwrap();
            assert_eq!(&received[..length], b"READY=1\nSTATUS=x");
            drop(manager);
            assert!(told.tell("STOPPING=1").is_err());
        }
        std::fs::remove_file(&path).unwrap();
        assert!(ServiceManager::at("vsock:2:1").is_err());
        assert!(monotonic_us() > 0);
    }
}
