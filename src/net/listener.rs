//! Listening TCP sockets.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::socket::set_flag;

/// Pending connections that the kernel keeps for us; it lowers this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listening socket in blocking mode. Closed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: SocketAddr,
}

impl Listener {
    /// Listens on `host:port` (port 0: any free one). `reuse_port` lets several processes share the
    /// port (SO_REUSEPORT). May block on name resolution.
    ///
    /// # Errors
    /// Whatever the resolver or the kernel says, with the address named.
    pub fn bind(host: &str, port: u16, reuse_port: bool) -> io::Result<Listener> {
        Listener::try_each(host, port, |address| {
            Listener::listen(bind_one(address, reuse_port)?)
        })
    }

    /// Looks whether [`Listener::bind`] would get the address, without listening: no client can
    /// connect meanwhile.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn check(host: &str, port: u16, reuse_port: bool) -> io::Result<()> {
        Listener::try_each(host, port, |address| {
            bind_one(address, reuse_port).map(|_| ())
        })
    }

    /// What `open` makes of the first address of `host` that it takes.
    fn try_each<T>(
        host: &str,
        port: u16,
        open: impl Fn(SocketAddr) -> io::Result<T>,
    ) -> io::Result<T> {
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot listen on {host}:{port}: {error}"),
            )
        };
        let host_only = host.trim_start_matches('[').trim_end_matches(']');
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (host_only, port).to_socket_addrs().map_err(named)? {
            match open(address) {
                Ok(opened) => return Ok(opened),
                Err(error) => last = error,
            }
        }
        Err(named(last))
    }

    fn listen(socket: OwnedFd) -> io::Result<Listener> {
        // SAFETY: no pointers are passed.
        if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let listener = std::net::TcpListener::from(socket);
        let address = listener.local_addr()?;
        Ok(Listener {
            socket: listener.into(),
            address,
        })
    }

    /// The bound address, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a connection. The returned socket is close-on-exec, so that processes started by
    /// backends do not inherit it.
    ///
    /// # Errors
    /// `EINVAL` after [`Listener::shut_down`]; `EMFILE` and the like when the system has no room.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        // SAFETY: null pointers mean that the peer's address is not wanted.
        let raw = unsafe {
            libc::accept4(
                self.socket.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            )
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` was just opened and nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    /// Ends a pending and every later [`Listener::accept`], from any thread; later connection
    /// attempts are refused.
    pub fn shut_down(&self) {
        // SAFETY: no pointers are passed; the descriptor is open while `self` lives.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// A socket that has its address and does not listen.
fn bind_one(address: SocketAddr, reuse_port: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    // SAFETY: no pointers are passed.
    let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `raw` was just opened and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // Restarting on the same port must not wait for connections in TIME_WAIT.
    set_flag(raw, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    // Connections inherit it: a peer that is gone without a word is noticed after some two hours,
    // be it asked by a protocol or not.
    set_flag(raw, libc::SOL_SOCKET, libc::SO_KEEPALIVE)?;
    if reuse_port {
        set_flag(raw, libc::SOL_SOCKET, libc::SO_REUSEPORT)?;
    }
    let (storage, length) = to_system(address);
    // SAFETY: `storage` holds `length` valid bytes of an address of this family.
    if unsafe { libc::bind(raw, (&raw const storage).cast(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

fn to_system(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let system = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is at least as large and as aligned as every address type.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(system) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let system = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe {
                (&raw mut storage)
                    .cast::<libc::sockaddr_in6>()
                    .write(system)
            };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpStream;
    use std::time::Duration;

    #[test]
    fn accepts_close_on_exec_and_ends_on_shut_down() {
        for host in ["127.0.0.1", "localhost"] {
            let listener = Listener::bind(host, 0, false).unwrap();
            let mut client = TcpStream::connect(listener.address()).unwrap();
            client.write_all(b"x").unwrap();
            let accepted = listener.accept().unwrap();
            // SAFETY: no pointers are passed.
            let flags = unsafe { libc::fcntl(accepted.as_raw_fd(), libc::F_GETFD) };
            assert_ne!(flags & libc::FD_CLOEXEC, 0);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| listener.accept().unwrap_err().raw_os_error());
                std::thread::sleep(Duration::from_millis(20));
                listener.shut_down();
                assert_eq!(waiting.join().unwrap(), Some(libc::EINVAL));
            });
            assert!(TcpStream::connect(listener.address()).is_err());
        }
    }

    #[test]
    fn a_taken_port_is_refused_by_name_and_shared_only_on_request() {
        let first = Listener::bind("127.0.0.1", 0, false).unwrap();
        let port = first.address().port();
        let error = Listener::bind("127.0.0.1", port, false).unwrap_err();
        assert!(
            error.to_string().contains(&format!("127.0.0.1:{port}")),
            "{error}"
        );
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let error = Listener::check("127.0.0.1", port, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        Listener::check("127.0.0.1", 0, false).unwrap();
        // TEST-NET-1: an address that is nobody's.
        let error = Listener::check("192.0.2.1", 0, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        let shared = Listener::bind("127.0.0.1", 0, true).unwrap();
        Listener::bind("127.0.0.1", shared.address().port(), true).unwrap();
        assert!(Listener::bind("not a host name", 0, false).is_err());
    }
}
