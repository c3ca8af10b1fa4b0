//! Connected sockets.

use std::io::{self, IoSlice};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

use bytes::BufMut;

/// Gives an open descriptor to a type that is built from raw descriptors.
pub fn adopt<T: FromRawFd>(socket: OwnedFd) -> T {
    // SAFETY: the descriptor is open and its ownership moves into the new value.
    unsafe { T::from_raw_fd(socket.into_raw_fd()) }
}

/// Sends small writes at once instead of collecting them.
pub fn set_nodelay(socket: RawFd) -> io::Result<()> {
    set_flag(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY)
}

/// Turns an option of the socket on.
pub(crate) fn set_flag(socket: RawFd, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: `on` is a readable int of the stated size.
    let result = unsafe {
        libc::setsockopt(
            socket,
            level,
            option,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result != 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Receives what has arrived into the spare room of `target`, which need not be initialised, and returns how many bytes; 0 is the end
/// of the stream, or no room.
///
/// # Errors
/// `WouldBlock` if nothing has arrived.
pub fn receive(socket: RawFd, target: &mut impl BufMut) -> io::Result<usize> {
    let room = target.chunk_mut();
    // SAFETY: the kernel writes at most `room.len()` bytes to an address that is writable for as many.
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

/// The most pieces that one [`send_vectored`] passes to the kernel (Linux' UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Sends as many bytes of `pieces` as the socket takes without waiting, and returns how many.
///
/// # Errors
/// `WouldBlock` if it takes none now; no signal is raised when the peer is gone.
pub fn send_vectored(socket: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // IoSlice is guaranteed to have the layout of iovec, and the kernel only reads through it.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len().min(PIECES_MAX);
    // SAFETY: `message` names `msg_iovlen` readable pieces that outlive the call.
    let sent = unsafe {
        libc::sendmsg(
            socket,
            &raw const message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Makes pending and later reads of the socket see the end of the stream, once what the kernel already has is read.
pub fn stop_receiving(socket: RawFd) {
    // SAFETY: no pointers are passed; a wrong descriptor is an error that is of no interest here.
    unsafe { libc::shutdown(socket, libc::SHUT_RD) };
}

/// Tells the peer that nothing more will come; it can still send.
pub fn finish_sending(socket: RawFd) {
    // SAFETY: as in `stop_receiving`.
    unsafe { libc::shutdown(socket, libc::SHUT_WR) };
}

/// Ends the connection in both directions; pending reads and writes return at once.
pub fn stop_transfer(socket: RawFd) {
    // SAFETY: as in `stop_receiving`.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
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
    fn stop_receiving_ends_reads_after_what_came() {
        let (mut source, mut target) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut source, b"x").unwrap();
        stop_receiving(target.as_raw_fd());
        let mut received = Vec::new();
        target.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"x");
    }
}
