//! Connected sockets.
//!
//! Callers name a socket by its number, as the runtime's streams and the shard's table of
//! connections do, and hold it open during the call. The system calls are rustix's, but for `recv`:
//! rustix takes memory that is not initialised only as `MaybeUninit`, which a `BufMut` gives out in
//! `unsafe` alone.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use bytes::BufMut;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, sockopt,
};

/// Gives an open descriptor to a type that is built from raw descriptors.
pub fn adopt<T: FromRawFd>(socket: OwnedFd) -> T {
    // SAFETY: the descriptor is open and its ownership moves into the new value.
    unsafe { T::from_raw_fd(socket.into_raw_fd()) }
}

/// Sends small writes at once instead of collecting them.
pub fn set_nodelay(socket: RawFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(borrow(&socket), true)?)
}

/// Has the kernel acknowledge what has come at once, and not with the next bytes that are sent. For
/// a peer that lets small pieces wait until the one before is acknowledged (Nagle's algorithm).
pub fn acknowledge_now(socket: RawFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_quickack(borrow(&socket), true)?)
}

/// `socket` for the length of a call.
fn borrow(socket: &RawFd) -> BorrowedFd<'_> {
    debug_assert!(*socket >= 0, "not a descriptor");
    // SAFETY: the number is that of a socket which the caller of this module holds open.
    unsafe { BorrowedFd::borrow_raw(*socket) }
}

/// Receives what has arrived into the spare room of `target`, which need not be initialised, and
/// returns how many bytes; 0 is the end of the stream, or no room.
///
/// # Errors
/// `WouldBlock` if nothing has arrived.
pub fn receive(socket: RawFd, target: &mut impl BufMut) -> io::Result<usize> {
    let room = target.chunk_mut();
    // SAFETY: the kernel writes at most `room.len()` bytes to an address that is writable for as
    // many.
    let received = unsafe {
        libc::recv(
            socket,
            room.as_mut_ptr().cast(),
            room.len(),
            libc::MSG_DONTWAIT,
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has just written that many bytes, and no more than there is room for.
    unsafe { target.advance_mut(received) };
    Ok(received)
}

/// Receives what has arrived into `pieces`, one after the other, and returns how many bytes; 0 is
/// the end of the stream, or no room.
///
/// # Errors
/// `WouldBlock` if nothing has arrived.
pub fn receive_vectored(socket: RawFd, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let pieces = match pieces.len() {
        0..=PIECES_MAX => pieces,
        _ => pieces.split_at_mut(PIECES_MAX).0,
    };
    let received = rustix::net::recvmsg(
        borrow(&socket),
        pieces,
        &mut RecvAncillaryBuffer::default(),
        RecvFlags::DONTWAIT,
    );
    Ok(received?.bytes)
}

/// The most pieces that one [`send_vectored`] or [`receive_vectored`] passes to the kernel (Linux'
/// UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Sends as many bytes of `pieces` as the socket takes without waiting, and returns how many.
///
/// # Errors
/// `WouldBlock` if it takes none now; no signal is raised when the peer is gone.
pub fn send_vectored(socket: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let pieces = pieces.get(..PIECES_MAX).unwrap_or(pieces);
    let sent = rustix::net::sendmsg(
        borrow(&socket),
        pieces,
        &mut SendAncillaryBuffer::default(),
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    );
    Ok(sent?)
}

/// Makes pending and later reads of the socket see the end of the stream, once what the kernel
/// already has is read.
pub fn stop_receiving(socket: RawFd) {
    // A connection that is over already says so, which is of no interest here.
    let _ = rustix::net::shutdown(borrow(&socket), Shutdown::Read);
}

/// Tells the peer that nothing more will come; it can still send.
pub fn finish_sending(socket: RawFd) {
    let _ = rustix::net::shutdown(borrow(&socket), Shutdown::Write);
}

/// Ends the connection as [`stop_transfer`] does, and has what the peer did not take thrown away
/// when the socket is closed.
pub fn abort(socket: RawFd) {
    let _ = sockopt::set_socket_linger(borrow(&socket), Some(Duration::ZERO));
    stop_transfer(socket);
}

/// Whether the connection is over: the peer has reset it, or this side has ended it in both
/// directions. The end of the peer's own side alone does not count.
pub fn is_reset(socket: RawFd) -> bool {
    const AT_ONCE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut entries = [PollFd::from_borrowed_fd(
        borrow(&socket),
        PollFlags::empty(),
    )];
    let count = rustix::event::poll(&mut entries, Some(&AT_ONCE));
    let ends = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    count == Ok(1) && entries[0].revents().intersects(ends)
}

/// Blocks until there is something to receive, be it the end or an error, at most for `limit`.
/// Whether there is.
pub fn wait_readable(socket: RawFd, limit: Duration) -> bool {
    let Ok(limit) = Timespec::try_from(limit) else {
        return false;
    };
    let mut entries = [PollFd::from_borrowed_fd(borrow(&socket), PollFlags::IN)];
    rustix::event::poll(&mut entries, Some(&limit)) == Ok(1)
}

/// Ends the connection in both directions; pending reads and writes return at once.
pub fn stop_transfer(socket: RawFd) {
    let _ = rustix::net::shutdown(borrow(&socket), Shutdown::Both);
}

/// Who is at the other end of a TCP connection.
///
/// # Errors
/// If the connection is gone, or is none of TCP.
pub fn peer_address(socket: RawFd) -> io::Result<IpAddr> {
    let address = rustix::net::getpeername(borrow(&socket))?;
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    match address {
        Some(address) => Ok(address.ip()),
        None => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

/// The user who opened the other end of a Unix socket.
///
/// # Errors
/// If it is none.
pub fn peer_user(socket: RawFd) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(borrow(&socket))?.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn sends_pieces_in_order_and_never_waits() {
        let (source, mut target) = UnixStream::pair().unwrap();
        let pieces = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")];
        assert_eq!(send_vectored(source.as_raw_fd(), &pieces).unwrap(), 5);
        let mut received = [0; 5];
        target.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"abcde");
        let large = vec![0; 1 << 20];
        let error = loop {
            match send_vectored(source.as_raw_fd(), &[IoSlice::new(&large)]) {
                Ok(sent) => assert!(sent > 0),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(target);
        let error = send_vectored(source.as_raw_fd(), &[IoSlice::new(b"x")]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn receives_into_pieces_in_order_and_never_waits() {
        let (mut source, target) = UnixStream::pair().unwrap();
        let (mut first, mut second) = ([0; 2], [0; 4]);
        let mut pieces = [
            IoSliceMut::new(&mut first),
            IoSliceMut::new(&mut []),
            IoSliceMut::new(&mut second),
        ];
        let error = receive_vectored(target.as_raw_fd(), &mut pieces).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        io::Write::write_all(&mut source, b"abcde").unwrap();
        assert_eq!(
            receive_vectored(target.as_raw_fd(), &mut pieces).unwrap(),
            5
        );
        drop(source);
        assert_eq!(
            receive_vectored(target.as_raw_fd(), &mut pieces).unwrap(),
            0
        );
        assert_eq!((&first, &second), (b"ab", b"cde\0"));
    }

    #[test]
    fn peers_have_addresses() {
        use std::net::{TcpListener, TcpStream};
        for host in ["127.0.0.1", "::1"] {
            // Not every machine has both.
            let Ok(listener) = TcpListener::bind((host, 0)) else {
                continue;
            };
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let expected: IpAddr = host.parse().unwrap();
            assert_eq!(peer_address(server.as_raw_fd()).unwrap(), expected);
        }
        let (source, _target) = UnixStream::pair().unwrap();
        assert!(peer_address(source.as_raw_fd()).is_err());
    }

    #[test]
    fn only_a_reset_ends_a_connection() {
        use std::net::{Shutdown, TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for closes in [false, true] {
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut own, _) = listener.accept().unwrap();
            assert!(!is_reset(own.as_raw_fd()));
            peer.shutdown(Shutdown::Write).unwrap();
            assert_eq!(own.read(&mut [0; 1]).unwrap(), 0);
            assert!(!is_reset(own.as_raw_fd()), "it can still be written to");
            if closes {
                drop(peer);
            }
            io::Write::write_all(&mut own, b"x").unwrap();
            let mut looks = 0;
            while closes && !is_reset(own.as_raw_fd()) {
                looks += 1;
                assert!(looks < 1000, "the reset does not show");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            assert_eq!(is_reset(own.as_raw_fd()), closes);
        }
    }

    #[test]
    fn stop_receiving_ends_reads_after_what_came() {
        let (mut source, mut target) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut source, b"x").unwrap();
        stop_receiving(target.as_raw_fd());
        let mut received = Vec::new();
        target.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"x");
    }
}
