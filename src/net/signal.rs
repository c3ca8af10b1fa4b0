//! Signals as a blocking read.
//!
//! The handler only stores the number and writes an eventfd, which is all that is safe inside one. Signals are not blocked: processes
//! that backends start would inherit the mask.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

static EVENT: AtomicI32 = AtomicI32::new(-1);
static LAST: AtomicI32 = AtomicI32::new(0);

/// Receives the signals it was installed for. One per process.
#[derive(Debug)]
pub struct Signals {
    event: OwnedFd,
}

extern "C" fn handle(number: libc::c_int) {
    // SAFETY: errno's address is valid for this thread; it is put back so that the interrupted code does not see a change.
    let saved = unsafe { *libc::__errno_location() };
    LAST.store(number, Ordering::Relaxed);
    let one = 1u64.to_ne_bytes();
    // SAFETY: write is async-signal-safe and `one` is readable; a wrong or full descriptor is an error without effect.
    unsafe {
        libc::write(
            EVENT.load(Ordering::Acquire),
            one.as_ptr().cast(),
            one.len(),
        )
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = saved };
}

impl Signals {
    /// Installs the handler for `numbers` (such as `libc::SIGTERM`).
    ///
    /// # Errors
    /// If it is installed already, or the kernel refuses.
    pub fn install(numbers: &[i32]) -> io::Result<Signals> {
        // SAFETY: no pointers are passed.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and nobody else owns it.
        let event = unsafe { OwnedFd::from_raw_fd(raw) };
        if EVENT
            .compare_exchange(-1, raw, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "signal handlers are installed already",
            ));
        }
        // Made before the handlers, so that a refusal of one takes the descriptor's number away from those that are installed.
        let signals = Signals { event };
        for number in numbers {
            set(*number, handle)?;
        }
        Ok(signals)
    }

    /// Blocks until one of the signals came, and returns its number.
    pub fn wait(&self) -> io::Result<i32> {
        let mut count = [0u8; 8];
        loop {
            // SAFETY: `count` is writable and as long as stated.
            let got = unsafe {
                libc::read(
                    self.event.as_raw_fd(),
                    count.as_mut_ptr().cast(),
                    count.len(),
                )
            };
            if got > 0 {
                return Ok(LAST.load(Ordering::Relaxed));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Has a write beyond the limit of a file's size (RLIMIT_FSIZE) fail, where it would end the process.
///
/// # Errors
/// If the kernel refuses.
pub fn survive_size_limits() -> io::Result<()> {
    extern "C" fn go_on(_: libc::c_int) {}
    // Not ignored: programs that backends start would inherit that.
    set(libc::SIGXFSZ, go_on)
}

fn set(number: i32, handler: extern "C" fn(libc::c_int)) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is readable and its handler only does what is safe in one.
    match unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // The handlers stay installed and write into nothing.
        EVENT.store(-1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_grow_is_an_error() {
        survive_size_limits().unwrap();
        // What the kernel sends whoever writes beyond the limit.
        // SAFETY: no pointers are passed; the handler is installed.
        assert_eq!(unsafe { libc::raise(libc::SIGXFSZ) }, 0);
    }

    #[test]
    fn a_signal_is_read_once() {
        let refused = Signals::install(&[libc::SIGUSR2, libc::SIGKILL]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        // SAFETY: no pointers are passed; the handler that was installed before the refusal writes into nothing.
        unsafe { libc::raise(libc::SIGUSR2) };
        let signals = Signals::install(&[libc::SIGUSR2]).unwrap();
        assert!(
            Signals::install(&[libc::SIGUSR2]).is_err(),
            "one per process"
        );
        // SAFETY: no pointers are passed; the handler is installed.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert_eq!(signals.wait().unwrap(), libc::SIGUSR2);
    }
}
