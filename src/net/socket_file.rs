//! The files of Unix sockets.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The file of a socket that this process has bound. Removed on drop, unless it is another's by
/// then.
#[derive(Debug)]
pub(crate) struct UnixSocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// Another process serves it.
    is_left: AtomicBool,
}

impl UnixSocketFile {
    /// A socket bound to `path` that does not listen yet, with the permissions `mode`. Where two
    /// servers find the socket of one that was killed at the same moment, the later takes the path.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there, `AlreadyExists` if the file is no socket.
    pub(crate) fn bind(path: &Path, mode: Option<u32>) -> io::Result<(OwnedFd, UnixSocketFile)> {
        let address = SocketAddrUnix::new(path)?;
        let socket = new_socket(SocketFlags::CLOEXEC)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                remove_unserved(path, &address)?;
                rustix::net::bind(&socket, &address)?;
            }
            Err(error) => return Err(error.into()),
        }
        let file = UnixSocketFile {
            path: path.to_owned(),
            identity: identity(path)?,
            is_left: AtomicBool::new(false),
        };
        // Nobody can connect before it listens.
        if let Some(mode) = mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        Ok((socket, file))
    }
}

impl UnixSocketFile {
    /// Leaves the file where it is, on drop as well.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }
}

impl Drop for UnixSocketFile {
    fn drop(&mut self) {
        if !self.is_left.load(Ordering::Acquire)
            && identity(&self.path).is_ok_and(|now| now == self.identity)
        {
            // It is in nobody's way: the next server replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

/// Device and inode of what lies at `path`, be it a link.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes the socket of a process that has ended without removing it.
fn remove_unserved(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file is there, and is no socket",
        ));
    }
    // Does not wait where the queue of connections is full.
    let probe = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(_) => Err(io::Error::from(Errno::ADDRINUSE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn what_lies_at_the_path_decides() {
        let folder =
            std::env::temp_dir().join(format!("conch-net-socket-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("s");
        let bind = || UnixSocketFile::bind(&path, None);
        // Of a process that was killed.
        drop(UnixListener::bind(&path).unwrap());
        let (_socket, file) = bind().unwrap();
        // Bound, and not listening: as good as unserved.
        let (_other_socket, other) = bind().unwrap();
        drop(file);
        assert!(path.exists(), "it is the other's by now");
        drop(other);
        assert!(!path.exists());

        fs::write(&path, "text").unwrap();
        assert_eq!(bind().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nonexistent/s", &path).unwrap();
        assert_eq!(bind().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();

        let served = UnixListener::bind(&path).unwrap();
        assert_eq!(bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(served);
        let long = folder.join("x".repeat(108));
        assert!(UnixSocketFile::bind(&long, None).is_err());
        assert!(UnixSocketFile::bind(Path::new(""), None).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
