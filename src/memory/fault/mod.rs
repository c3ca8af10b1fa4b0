//! Memory faults (SIGBUS) on files that others may shrink.
//!
//! Who maps a file of another process can find that pages which were there are gone: the kernel
//! raises SIGBUS at the next access, be it ours or a backend's, and without a handler the process
//! ends. Here ranges of addresses are put under watch. A fault within one replaces the whole range
//! by zero pages and marks it lost; the access then goes on as if nothing had happened, and whoever
//! asked for it looks at the mark afterwards. Any other fault goes to the handler that was there
//! before.
//!
//! The whole range at once, because a page at a time would cost a signal and a mapping for each: a
//! client that punches holes could exhaust the process' mappings. What the other pages held does
//! not matter any more, as no use of a lost range succeeds.
//!
//! A backend that installs a SIGBUS handler of its own afterwards and does not call ours takes this
//! protection away.

use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, siginfo_t};

/// Ranges under watch at a time: a quarter of the mappings that Linux allows a process by default.
const RANGES_MAX: usize = 16 << 10;

/// One range of addresses. A sequence lock: only the owner writes, and the handler must never wait.
struct WatchSlot {
    /// Odd while the bounds change.
    turn: AtomicUsize,
    base: AtomicUsize,
    end: AtomicUsize,
    is_lost: AtomicBool,
}

impl WatchSlot {
    const fn empty() -> WatchSlot {
        WatchSlot {
            turn: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Called by the slot's only owner.
    fn set(&self, base: usize, end: usize) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        // The odd turn is seen before the bounds, the even one after.
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// The bounds, unless they are being changed: then nobody uses the range yet, or any more.
    fn bounds(&self) -> Option<(usize, usize)> {
        let turn = self.turn.load(Ordering::Acquire);
        let bounds = (
            self.base.load(Ordering::Relaxed),
            self.end.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        (turn.is_multiple_of(2) && self.turn.load(Ordering::Relaxed) == turn).then_some(bounds)
    }
}

static SLOTS: [WatchSlot; RANGES_MAX] = [const { WatchSlot::empty() }; RANGES_MAX];
/// Slots from here on were never used.
static USED_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Used slots that are free again. Not for the handler.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
/// What to do with faults that are not ours. Set before our handler is installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once in the process.
///
/// # Errors
/// What the system says.
pub fn install() -> io::Result<()> {
    static IS_INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut is_installed = IS_INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_installed {
        return Ok(());
    }
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the present action into `previous`, which is writable.
    if unsafe { libc::sigaction(libc::SIGBUS, null_mut(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    PREVIOUS.get_or_init(|| previous);
    PAGE_BYTES.store(rustix::param::page_size(), Ordering::Relaxed);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    // On the thread's alternate stack where it has one: the fault may come at the end of a deep
    // stack.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `action` is readable, and its handler only does what is safe in one.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *is_installed = true;
    Ok(())
}

/// A range of addresses under watch until this is dropped.
#[derive(Debug)]
pub(crate) struct AddressWatch {
    index: usize,
}

impl AddressWatch {
    /// Watches the pages of `base..end`; both lie on page boundaries. None if too many ranges are
    /// watched.
    pub(crate) fn over(base: usize, end: usize) -> Option<AddressWatch> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match free.pop() {
            Some(index) => index,
            None => {
                let index = USED_COUNT.load(Ordering::Relaxed);
                if index == RANGES_MAX {
                    return None;
                }
                USED_COUNT.store(index + 1, Ordering::Release);
                index
            }
        };
        drop(free);
        let watch = AddressWatch { index };
        watch.slot().is_lost.store(false, Ordering::Relaxed);
        watch.slot().set(base, end);
        Some(watch)
    }

    fn slot(&self) -> &'static WatchSlot {
        // Only made with an index below the bound.
        &SLOTS[self.index]
    }

    /// Whether the range was replaced by zero pages.
    pub(crate) fn is_lost(&self) -> bool {
        self.slot().is_lost.load(Ordering::Acquire)
    }
}

impl Drop for AddressWatch {
    fn drop(&mut self) {
        self.slot().set(0, 0);
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.index);
    }
}

/// The handler. Everything it calls is async-signal-safe: atomic loads and stores, `mmap`, and at
/// last the previous handler.
extern "C" fn on_fault(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: errno's address is valid for this thread; it is put back so that the interrupted code
    // does not see a change.
    let saved = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid `siginfo_t` to handlers with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code != libc::BUS_ADRERR || !contain(address) {
        pass_on(number, info, context, code);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = saved };
}

/// Replaces the watched range around `address`, if there is one.
fn contain(address: usize) -> bool {
    let used = USED_COUNT.load(Ordering::Acquire);
    // The range of the faulting access does not change meanwhile: it is in use.
    let found = SLOTS.iter().take(used).find_map(|slot| {
        let (base, end) = slot.bounds()?;
        (base..end).contains(&address).then_some((slot, base, end))
    });
    let Some((slot, base, end)) = found else {
        return false;
    };
    let is_first = !slot.is_lost.swap(true, Ordering::AcqRel);
    if is_first && put_zeros(base, end - base) {
        return true;
    }
    // Another thread is at it, or the system does not promise as much memory: one page will do for
    // this access.
    let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
    put_zeros(address - address % page_bytes, page_bytes)
}

/// Replaces pages within a watched range by zeros.
fn put_zeros(base: usize, bytes: usize) -> bool {
    // SAFETY: the range is a mapping of ours, of which no part is borrowed as a Rust reference; it
    // stays readable and writable. Other threads find either the file's pages or zeros.
    let zeros = unsafe {
        libc::mmap(
            base as *mut c_void,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    zeros != libc::MAP_FAILED
}

/// Does with a fault what would have been done without us.
fn pass_on(number: c_int, info: *mut siginfo_t, context: *mut c_void, code: c_int) {
    let previous = PREVIOUS.get();
    let action = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    // Sent by a process (kill), not caused by an access.
    let is_sent = code <= 0;
    match action {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores the default action, which ends the process: when the access is
            // repeated, or by the signal raised here, which stays pending until the handler
            // returns.
            unsafe {
                libc::signal(number, libc::SIG_DFL);
                if is_sent {
                    libc::raise(number);
                }
            }
        }
        handler => {
            let takes_info =
                previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
            // SAFETY: the address is that of a handler which was installed with these flags, so it
            // has this signature; it gets what it would have got from the kernel.
            unsafe {
                if takes_info {
                    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                        std::mem::transmute(handler);
                    handler(number, info, context);
                } else {
                    let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                    handler(number);
                }
            }
        }
    }
}

// Signals and shared memory are beyond Miri.
#[cfg(not(miri))]
#[cfg(test)]
mod tests;
