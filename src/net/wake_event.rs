//! What wakes a thread that sleeps on a ring, or that waits for connections.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::EventfdFlags;

/// A descriptor that becomes readable by [`WakeEvent::raise`], each time anew for those who watch
/// arrivals. It is never read: its counter has room for all that a process can raise.
#[derive(Debug)]
pub struct WakeEvent {
    descriptor: OwnedFd,
}

impl WakeEvent {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<WakeEvent> {
        let descriptor = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(WakeEvent { descriptor })
    }

    /// One system call, from any thread.
    pub fn raise(&self) {
        // Failure: the counter is full, so it is readable.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }
}

impl AsRawFd for WakeEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
