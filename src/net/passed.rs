//! Listening sockets that the process was started with, as systemd passes them (`sd_listen_fds`):
//! LISTEN_FDS of them from descriptor 3 on, for the process LISTEN_PID, with the names
//! LISTEN_FDNAMES. By libc is the look at a number that may be no descriptor.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::listener::Listener;

/// The number of the first descriptor.
const FIRST: RawFd = 3;
/// More than there are listeners, each on several addresses.
const COUNT_MAX: usize = 64;
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// A socket with the name that it was given.
#[derive(Clone, Debug)]
pub struct PassedSocket {
    pub name: String,
    pub listener: Arc<Listener>,
}

/// Takes the sockets that the variables tell of; none where they are another process's. To be
/// called once, before the process opens what it keeps: a second call takes nothing.
///
/// # Errors
/// A variable makes no sense, or a descriptor is no socket that listens.
pub fn take_sockets(environment: &dyn Fn(&str) -> Option<String>) -> io::Result<Vec<PassedSocket>> {
    let own = std::process::id().to_string();
    // A process that this one starts inherits the variables, and not the sockets.
    if environment("LISTEN_PID").as_deref() != Some(&own) {
        return Ok(Vec::new());
    }
    let names = names(environment("LISTEN_FDS"), environment("LISTEN_FDNAMES"))?;
    if names.is_empty() || IS_TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    adopt(FIRST, names)
}

/// The name of each socket: empty where there are no names.
fn names(count: Option<String>, names: Option<String>) -> io::Result<Vec<String>> {
    let Some(text) = count else {
        return Ok(Vec::new());
    };
    let count = text.parse().ok().filter(|count| *count <= COUNT_MAX);
    let count = count.ok_or_else(|| {
        refuse(format!(
            "LISTEN_FDS={text} is no number of sockets from 0 to {COUNT_MAX}"
        ))
    })?;
    let Some(text) = names.filter(|_| count > 0) else {
        return Ok(vec![String::new(); count]);
    };
    let names: Vec<String> = text.split(':').map(String::from).collect();
    match names.len() == count {
        true => Ok(names),
        false => Err(refuse(format!(
            "LISTEN_FDNAMES={text} has {} names for {count} sockets",
            names.len()
        ))),
    }
}

/// The descriptors from `first` on, one for each of `names`.
fn adopt(first: RawFd, names: Vec<String>) -> io::Result<Vec<PassedSocket>> {
    let numbered = (first..).zip(names);
    numbered
        .map(|(number, name)| {
            let named = |error: io::Error| {
                let text =
                    format!("the socket '{name}', descriptor {number}, is of no use: {error}");
                io::Error::new(error.kind(), text)
            };
            // SAFETY: passes numbers only; one that is no descriptor is an error.
            if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
                return Err(named(io::Error::last_os_error()));
            }
            // SAFETY: it is open. Whoever started this process left it for it to own, and says so
            // by LISTEN_PID; it is taken once.
            let socket = unsafe { OwnedFd::from_raw_fd(number) };
            let listener = Arc::new(Listener::adopt(socket).map_err(named)?);
            Ok(PassedSocket { name, listener })
        })
        .collect()
}

fn refuse(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::IntoRawFd;

    #[test]
    fn as_many_names_as_sockets() {
        let text = |text: &str| Some(String::from(text));
        for (count, given, expected) in [
            (None, None, Some(&[][..])),
            (None, text("http"), Some(&[])),
            (text("0"), text(""), Some(&[])),
            (text("2"), None, Some(&["", ""])),
            (text("2"), text("http:"), Some(&["http", ""])),
            (text("1"), text("http:grpc"), None),
            (text("2"), text("http"), None),
            (text("-1"), None, None),
            (text("65"), None, None),
            (text("x"), None, None),
        ] {
            let found = names(count.clone(), given.clone()).ok();
            let expected = expected.map(|it| it.iter().map(ToString::to_string).collect());
            assert_eq!(found, expected, "{count:?} {given:?}");
        }
    }

    #[test]
    fn sockets_of_another_process_are_left() {
        for process in [None, Some("1"), Some("")] {
            let environment = |name: &str| match name {
                "LISTEN_PID" => process.map(String::from),
                _ => Some(String::from("1")),
            };
            assert!(take_sockets(&environment).unwrap().is_empty());
        }
    }

    #[test]
    fn adopts_what_listens_and_names_what_does_not() {
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listening.local_addr().unwrap();
        let number = listening.into_raw_fd();
        let passed = adopt(number, vec![String::from("http")]).unwrap();
        assert_eq!(passed[0].name, "http");
        assert_eq!(passed[0].listener.address().tcp(), Some(address));
        let number = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
        let error = adopt(number, vec![String::from("grpc")]).unwrap_err();
        assert!(
            error.to_string().starts_with("the socket 'grpc', "),
            "{error}"
        );
        let error = adopt(RawFd::MAX - 8, vec![String::new()]).unwrap_err();
        assert!(error.to_string().contains("Bad file descriptor"), "{error}");
    }
}
