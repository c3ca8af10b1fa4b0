//! Signals as a blocking read.
//!
//! The handler only stores the number and writes an eventfd, which is all that is safe inside one.
//! Signals are not blocked: processes that backends start would inherit the mask.
//!
//! By libc are handlers (`sigaction`, `signal`, `raise`) and `_exit`, which rustix leaves to it,
//! and what a handler calls: it has to put errno back.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

static EVENT: AtomicI32 = AtomicI32::new(-1);
/// A bit for each signal that came and was not read yet.
static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// Receives the signals it was installed for. One per process.
#[derive(Debug)]
pub struct Signals {
    event: OwnedFd,
}

extern "C" fn handle(number: libc::c_int) {
    // SAFETY: errno's address is valid for this thread; it is put back so that the interrupted code
    // does not see a change.
    let saved = unsafe { *libc::__errno_location() };
    RECEIVED.fetch_or(1 << (number & 63), Ordering::Release);
    let one = 1u64.to_ne_bytes();
    // SAFETY: write is async-signal-safe and `one` is readable; a wrong or full descriptor is an
    // error without effect.
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
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        if EVENT
            .compare_exchange(-1, event.as_raw_fd(), Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "signal handlers are installed already",
            ));
        }
        RECEIVED.store(0, Ordering::Relaxed);
        // Made before the handlers, so that a refusal of one takes the descriptor's number away
        // from those that are installed.
        let signals = Signals { event };
        for number in numbers {
            set(*number, handle)?;
        }
        Ok(signals)
    }

    /// Blocks until one of the signals came, and returns its number. Signals that come together are
    /// returned one by one.
    pub fn wait(&self) -> io::Result<i32> {
        let mut count = [0u8; 8];
        loop {
            let received = RECEIVED.load(Ordering::Acquire);
            if received != 0 {
                let number = received.trailing_zeros();
                RECEIVED.fetch_and(!(1 << number), Ordering::AcqRel);
                return Ok(number.cast_signed());
            }
            match rustix::io::read(&self.event, &mut count) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Signals that ask the server to end.
pub const STOPS: [i32; 2] = [libc::SIGINT, libc::SIGTERM];
/// The signal that asks for log file and certificates to be opened anew.
pub const RELOAD: i32 = libc::SIGHUP;

/// The signal that asks for another executable in this one's place.
pub const UPGRADE: i32 = libc::SIGUSR2;

/// Asks another process to end. One that is gone already is no matter.
pub fn ask_to_end(process: u32) {
    let process = i32::try_from(process).ok();
    if let Some(process) = process.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
    }
}

/// Has signals without a meaning here (SIGUSR1, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
/// SIGPWR) do nothing, where they would end the process. A plug-in that has a use for one sets its
/// own handler.
///
/// # Errors
/// If the kernel refuses.
pub fn survive_stray_signals() -> io::Result<()> {
    extern "C" fn go_on(_: libc::c_int) {}
    // Not ignored: programs that backends start would inherit that.
    [
        libc::SIGUSR1,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
    ]
    .into_iter()
    .try_for_each(|number| set(number, go_on))
}

/// Ends the process at once: no handler of its exit runs, as those of plug-ins must not while
/// threads are still inside of them.
pub fn end_process(code: i32) -> ! {
    // SAFETY: does not return, and touches nothing of ours.
    unsafe { libc::_exit(code) }
}

/// Has a write beyond the limit of a file's size (RLIMIT_FSIZE) fail, where it would end the
/// process.
///
/// # Errors
/// If the kernel refuses.
pub fn survive_size_limits() -> io::Result<()> {
    extern "C" fn go_on(_: libc::c_int) {}
    // Not ignored: programs that backends start would inherit that.
    set(libc::SIGXFSZ, go_on)
}

/// Has the signals of a crash (SIGSEGV, SIGABRT, SIGILL, SIGFPE) wait until `pending` returns 0,
/// half a second at most, and then do what they would have done: the last lines of a log tell of
/// the crash. `pending` must be async-signal-safe. Once per process.
///
/// # Errors
/// If the kernel refuses.
pub fn drain_before_crash(pending: fn() -> usize) -> io::Result<()> {
    if PENDING.set(pending).is_err() {
        return Ok(());
    }
    for (number, previous) in CRASHES.into_iter().zip(&PREVIOUS) {
        // SAFETY: all-zero bytes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only reads the present action into `action`.
        if unsafe { libc::sigaction(number, std::ptr::null(), &raw mut action) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = previous.set(action);
        action.sa_sigaction = drain_and_crash as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `action` is readable and its handler only does what is safe in one.
        if unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

static PENDING: OnceLock<fn() -> usize> = OnceLock::new();
static PREVIOUS: [OnceLock<libc::sigaction>; 4] = [const { OnceLock::new() }; 4];
const CRASHES: [i32; 4] = [libc::SIGSEGV, libc::SIGABRT, libc::SIGILL, libc::SIGFPE];

extern "C" fn drain_and_crash(
    number: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    let pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    for _ in 0..500 {
        // `get` of what is set before the handler is installed only loads a word.
        if PENDING.get().is_none_or(|pending| pending() == 0) {
            break;
        }
        // SAFETY: async-signal-safe; `pause` is readable.
        unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
    }
    let previous = CRASHES.iter().position(|crash| *crash == number);
    let previous = previous.and_then(|index| PREVIOUS.get(index)?.get());
    // SAFETY: the kernel passes what it knows of this signal; sigaction, signal and raise are
    // async-signal-safe.
    unsafe {
        match previous {
            // The instruction is executed again, and faults again: the handler before this one
            // tells of overflowing stacks.
            Some(previous) if (*info).si_code > 0 => {
                libc::sigaction(number, std::ptr::from_ref(previous), std::ptr::null_mut());
            }
            // What was sent, as by abort, does not come again by itself. It stays pending until
            // this handler returns.
            _ => {
                libc::signal(number, libc::SIG_DFL);
                libc::raise(number);
            }
        }
    }
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
        // SAFETY: no pointers are passed; the handler that was installed before the refusal writes
        // into nothing.
        unsafe { libc::raise(libc::SIGUSR2) };
        let signals = Signals::install(&[libc::SIGUSR2]).unwrap();
        assert!(
            Signals::install(&[libc::SIGUSR2]).is_err(),
            "one per process"
        );
        // SAFETY: no pointers are passed; the handler is installed.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert_eq!(signals.wait().unwrap(), libc::SIGUSR2);
        set(libc::SIGHUP, handle).unwrap();
        // SAFETY: as above.
        let raised = unsafe { libc::raise(libc::SIGUSR2) + libc::raise(libc::SIGHUP) };
        assert_eq!(raised, 0);
        assert_eq!(signals.wait().unwrap(), libc::SIGHUP);
        assert_eq!(signals.wait().unwrap(), libc::SIGUSR2);
    }
}
