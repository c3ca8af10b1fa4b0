//! Listening sockets: of TCP, and of the file system; bound here, or passed by whoever started the
//! process.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::socket_file::UnixSocketFile;
use crate::wake_event::WakeEvent;

/// Pending connections that the kernel keeps for us; it lowers this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Where clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    /// A socket of the file system.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The address of a TCP socket; none of another.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Unix(_) => None,
        }
    }
}

/// As clients of gRPC write it.
impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(formatter),
            ListenAddress::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// A listening socket. Closed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: ListenAddress,
    /// Of a Unix socket: removed with the listener.
    file: Option<UnixSocketFile>,
    /// Ends a wait.
    end: WakeEvent,
    /// Others hold the socket as well, or will: it is not to be shut down for all of them.
    is_shared: AtomicBool,
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

    /// Listens on a socket of the file system at `path`, with the permissions `mode`, or those that
    /// the umask leaves. A socket there that no process listens on any more is replaced. The file
    /// is removed on drop, unless another server has replaced it.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there, `AlreadyExists` if the file is no socket; else what
    /// the kernel says, with the path named.
    pub fn bind_unix(path: &Path, mode: Option<u32>) -> io::Result<Listener> {
        let named = |error| unix_error(path, &error);
        let (socket, file) = UnixSocketFile::bind(path, mode).map_err(named)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|error| named(error.into()))?;
        Listener::of(socket, ListenAddress::Unix(path.to_owned()), Some(file)).map_err(named)
    }

    /// Accepts from a socket that listens already, and that others hold as well: it goes on
    /// listening when this value has been shut down, and its file is not removed. It does not block
    /// any more, for nobody who holds it.
    ///
    /// # Errors
    /// `InvalidInput` if it is no stream socket that listens.
    pub fn adopt(socket: OwnedFd) -> io::Result<Listener> {
        let listens = sockopt::socket_type(&socket).is_ok_and(|it| it == SocketType::STREAM)
            && sockopt::socket_acceptconn(&socket).unwrap_or(false);
        let refuse = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if !listens {
            return Err(refuse("it is no stream socket that listens"));
        }
        let bound = rustix::net::getsockname(&socket)?;
        let address =
            address_of(&bound).ok_or_else(|| refuse("it is neither of TCP nor a Unix socket"))?;
        if address.tcp().is_some() {
            sockopt::set_socket_keepalive(&socket, true)?;
        }
        let listener = Listener::of(socket, address, None)?;
        listener.is_shared.store(true, Ordering::Release);
        Ok(listener)
    }

    fn of(
        socket: OwnedFd,
        address: ListenAddress,
        file: Option<UnixSocketFile>,
    ) -> io::Result<Listener> {
        // Where several processes wait, one gets the connection and the others must not block.
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Listener {
            socket,
            address,
            file,
            end: WakeEvent::new()?,
            is_shared: AtomicBool::new(false),
        })
    }

    /// Looks whether [`Listener::bind_unix`] would get the path, without listening.
    ///
    /// # Errors
    /// As [`Listener::bind_unix`].
    pub fn check_unix(path: &Path) -> io::Result<()> {
        let bound = UnixSocketFile::bind(path, None);
        bound.map(drop).map_err(|error| unix_error(path, &error))
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
        rustix::net::listen(&socket, BACKLOG)?;
        let listener = std::net::TcpListener::from(socket);
        let address = listener.local_addr()?;
        Listener::of(listener.into(), ListenAddress::Tcp(address), None)
    }

    /// The bound address, with the port that the kernel chose.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Waits for a connection. The returned socket is close-on-exec, so that processes started by
    /// backends do not inherit it.
    ///
    /// # Errors
    /// `EINVAL` after [`Listener::shut_down`] or [`Listener::leave`]; `EMFILE` and the like when
    /// the system has no room.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        let accept = || rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC);
        loop {
            let mut watched = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&self.end, PollFlags::IN),
            ];
            match rustix::event::poll(&mut watched, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if watched[1].revents().contains(PollFlags::IN) {
                return Err(Errno::INVAL.into());
            }
            match accept() {
                // The client is gone, or another process has it.
                Err(Errno::AGAIN) => {}
                accepted => return Ok(accepted?),
            }
        }
    }

    /// Ends a pending and every later [`Listener::accept`], from any thread; later connection
    /// attempts are refused, or, where the socket is another's as well, wait for who accepts next.
    pub fn shut_down(&self) {
        self.end.raise();
        if !self.is_shared.load(Ordering::Acquire) {
            // A socket that is shut down already says so, which is of no interest here.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
    }

    /// Ends a pending and every later [`Listener::accept`], and leaves the socket and its file to
    /// another process, which accepts from it.
    pub fn leave(&self) {
        self.is_shared.store(true, Ordering::Release);
        if let Some(file) = &self.file {
            file.leave();
        }
        self.end.raise();
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Where clients connect to a bound socket; none of another kind.
fn address_of(bound: &SocketAddrAny) -> Option<ListenAddress> {
    if let Ok(address) = SocketAddr::try_from(bound.clone()) {
        return Some(ListenAddress::Tcp(address));
    }
    let address = SocketAddrUnix::try_from(bound.clone()).ok()?;
    let name = match (address.path_bytes(), address.abstract_name()) {
        (Some(path), _) => PathBuf::from(OsStr::from_bytes(path)),
        // As systemd and ss write it.
        (None, Some(name)) => PathBuf::from(format!("@{}", String::from_utf8_lossy(name))),
        (None, None) => return None,
    };
    Some(ListenAddress::Unix(name))
}

fn unix_error(path: &Path, error: &io::Error) -> io::Error {
    let text = format!("cannot listen on unix:{}: {error}", path.display());
    io::Error::new(error.kind(), text)
}

/// A socket that has its address and does not listen.
fn bind_one(address: SocketAddr, reuse_port: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Restarting on the same port must not wait for connections in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Connections inherit it: a peer that is gone without a word is noticed after some two hours,
    // be it asked by a protocol or not.
    sockopt::set_socket_keepalive(&socket, true)?;
    if reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::FdFlags;
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{self as unix, UnixStream};
    use std::time::Duration;

    fn tcp(listener: &Listener) -> SocketAddr {
        listener.address().tcp().unwrap()
    }

    #[test]
    fn accepts_close_on_exec_and_ends_on_shut_down() {
        for host in ["127.0.0.1", "localhost"] {
            let listener = Listener::bind(host, 0, false).unwrap();
            let mut client = TcpStream::connect(tcp(&listener)).unwrap();
            client.write_all(b"x").unwrap();
            let accepted = listener.accept().unwrap();
            let flags = rustix::io::fcntl_getfd(&accepted).unwrap();
            assert!(flags.contains(FdFlags::CLOEXEC));
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| listener.accept().unwrap_err().raw_os_error());
                // It most likely waits by then; whichever comes first, it ends.
                std::thread::sleep(Duration::from_millis(20));
                listener.shut_down();
                assert_eq!(waiting.join().unwrap(), Some(Errno::INVAL.raw_os_error()));
            });
            assert!(TcpStream::connect(tcp(&listener)).is_err());
        }
    }

    #[test]
    fn a_taken_port_is_refused_by_name_and_shared_only_on_request() {
        let first = Listener::bind("127.0.0.1", 0, false).unwrap();
        let port = tcp(&first).port();
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
        Listener::bind("127.0.0.1", tcp(&shared).port(), true).unwrap();
        assert!(Listener::bind("not a host name", 0, false).is_err());
    }

    #[test]
    fn an_adopted_socket_outlives_its_listener() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let listener = Listener::adopt(held.try_clone().unwrap().into()).unwrap();
        assert_eq!(tcp(&listener), address);
        let _first = TcpStream::connect(address).unwrap();
        listener.accept().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| listener.accept().unwrap_err().raw_os_error());
            std::thread::sleep(Duration::from_millis(20));
            listener.shut_down();
            assert_eq!(waiting.join().unwrap(), Some(Errno::INVAL.raw_os_error()));
        });
        // Waits for whoever accepts next.
        let _second = TcpStream::connect(address).unwrap();
        assert!(listener.accept().is_err());
        drop(listener);
        Listener::adopt(held.into()).unwrap().accept().unwrap();
    }

    #[test]
    fn only_sockets_that_listen_are_adopted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for other in [connected.into(), datagrams.into(), file.into()] {
            let error = Listener::adopt(other).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let name = format!("conch-net-adopt-{}", std::process::id());
        let address = unix::SocketAddr::from_abstract_name(&name).unwrap();
        let abstract_one = unix::UnixListener::bind_addr(&address).unwrap();
        let adopted = Listener::adopt(abstract_one.into()).unwrap();
        assert_eq!(adopted.address().to_string(), format!("unix:@{name}"));
    }

    #[test]
    fn unix_sockets_are_files_that_go_with_their_listener() {
        let folder =
            std::env::temp_dir().join(format!("conch-net-listener-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("http.sock");
        Listener::check_unix(&path).unwrap();
        assert!(!path.exists());
        let listener = Listener::bind_unix(&path, Some(0o620)).unwrap();
        assert_eq!(
            listener.address().to_string(),
            format!("unix:{}", path.display())
        );
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o620);
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"x").unwrap();
        let accepted = listener.accept().unwrap();
        assert!(crate::peer_address(accepted.as_raw_fd()).is_err());
        let own = rustix::process::getuid().as_raw();
        assert_eq!(crate::peer_user(accepted.as_raw_fd()).unwrap(), own);
        for error in [
            Listener::bind_unix(&path, None).unwrap_err(),
            Listener::check_unix(&path).unwrap_err(),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            assert!(error.to_string().contains("http.sock"), "{error}");
        }
        std::thread::scope(|scope| {
            // Those who looked whether it is served come first.
            let waiting = scope.spawn(|| {
                loop {
                    if let Err(error) = listener.accept() {
                        return error.raw_os_error();
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            listener.shut_down();
            assert_eq!(waiting.join().unwrap(), Some(Errno::INVAL.raw_os_error()));
        });
        assert!(UnixStream::connect(&path).is_err());
        drop(listener);
        assert!(!path.exists());
        std::fs::remove_dir(&folder).unwrap();
    }
}
