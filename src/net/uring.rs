//! Probes whether this process may use io_uring.
//!
//! By libc: rustix's `io_uring_setup` is `unsafe` as well.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Asks the kernel for a small ring and gives it back.
///
/// # Errors
/// The kernel's refusal, worded for the person who has to change it: containers deny io_uring by
/// default.
pub fn probe() -> io::Result<()> {
    // `struct io_uring_params` is 120 bytes of 4-byte fields; all zero asks for the defaults.
    let mut params = [0u32; 30];
    // SAFETY: `params` is writable and as large as the kernel's structure.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4u32, params.as_mut_ptr()) };
    if ring < 0 {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(error.kind(), explain(&error)));
    }
    let ring = i32::try_from(ring).expect("descriptors are ints");
    // SAFETY: the descriptor was just opened and nobody else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(ring) });
    Ok(())
}

/// The kernel's refusal of a ring, with what has to be changed.
pub fn explain(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "the kernel lacks it or a seccomp profile hides it; Linux 5.8 or later with io_uring \
             allowed is needed"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "a seccomp profile or the sysctl kernel.io_uring_disabled forbids it; allow \
             io_uring_setup, io_uring_enter and io_uring_register"
        }
        Some(libc::ENOMEM) => "not enough lockable memory; raise RLIMIT_MEMLOCK",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files; raise RLIMIT_NOFILE",
        _ => "unexpected",
    };
    format!("io_uring is not available: {error} ({hint})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_change() {
        for (errno, expected) in [
            (libc::ENOSYS, "seccomp"),
            (libc::EPERM, "io_uring_disabled"),
            (libc::ENOMEM, "RLIMIT_MEMLOCK"),
            (libc::EMFILE, "RLIMIT_NOFILE"),
        ] {
            let text = explain(&io::Error::from_raw_os_error(errno));
            assert!(text.contains(expected), "{text}");
        }
    }
}
