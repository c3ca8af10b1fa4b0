//! Opening files that somebody else put there: none may hold the caller up.
//!
//! The open of a FIFO waits for a process at its other end, that of a device may do anything. So
//! files are opened without waiting, and refused unless they are regular files, links to such
//! included.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a regular file for reading. Does not wait for another process.
///
/// # Errors
/// The system's; EISDIR for a directory, and `it is no regular file` for a FIFO, socket or device.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    // Before the open: that of a device may already do something.
    check(path)?;
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    // Once more: another file may have come to lie there meanwhile.
    regular(&file.metadata()?)?;
    Ok(file)
}

/// All of a regular file.
///
/// # Errors
/// As [`open`].
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    open(path)?.read_to_end(&mut contents)?;
    Ok(contents)
}

/// All of a regular file that holds text.
///
/// # Errors
/// As [`open`]; INVALID_DATA if it is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let mut contents = String::new();
    open(path)?.read_to_string(&mut contents)?;
    Ok(contents)
}

/// Whether `path` is a regular file, without opening it: for files that somebody else is going to
/// open by their path.
///
/// # Errors
/// As [`open`].
pub fn check(path: impl AsRef<Path>) -> io::Result<()> {
    regular(&std::fs::metadata(path)?)
}

fn regular(metadata: &std::fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    if metadata.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    Err(io::Error::other("it is no regular file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = std::env::temp_dir().join(format!("conch-files-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let place = |name: &str| directory.join(name);
        std::fs::write(place("text"), "contents").unwrap();
        std::os::unix::fs::symlink(place("text"), place("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place("socket")).unwrap();
        for name in ["text", "link"] {
            assert_eq!(read(place(name)).unwrap(), b"contents");
            assert_eq!(read_to_string(place(name)).unwrap(), "contents");
        }
        let devices = [Path::new("/dev/zero"), Path::new("/dev/null")];
        let odd = [place("fifo"), place("socket")];
        for path in odd.iter().map(|path| &**path).chain(devices) {
            assert_eq!(
                open(path).unwrap_err().to_string(),
                "it is no regular file",
                "{}",
                path.display()
            );
        }
        assert_eq!(
            read(&directory).unwrap_err().kind(),
            io::ErrorKind::IsADirectory
        );
        assert_eq!(
            check(place("nothing")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
