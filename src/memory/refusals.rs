//! Refusals of memory at random, for tests of the executable: builds with debug assertions alone
//! have them, and only if they are asked.
//!
//! The test holds a file of sixteen bytes that the server maps: how many of a thousand requests for
//! memory are refused, and a seed. It writes there while the server runs. Refused is what the
//! allocator and the arena are asked for, small and large alike.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// What the test writes: little-endian on the machines that there are tests for.
#[repr(C)]
struct RefusalRequest {
    permille: AtomicU64,
    seed: AtomicU64,
}

static WISH: AtomicPtr<RefusalRequest> = AtomicPtr::new(std::ptr::null_mut());
/// Requests since refusals began.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Refuses from now on what the file at `path` says. The mapping stays.
///
/// # Errors
/// What the system says of the file.
pub fn follow(path: &str) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path)?;
    if file.metadata()?.len() < size_of::<RefusalRequest>() as u64 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: a shared mapping of a file touches no existing memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<RefusalRequest>(),
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    WISH.store(base.cast(), Ordering::Release);
    Ok(())
}

/// Whether the next request is to be refused.
pub(crate) fn is_next() -> bool {
    let wish = WISH.load(Ordering::Acquire);
    if wish.is_null() {
        return false;
    }
    // SAFETY: a mapping that is never taken away; the fields are only loaded, as its pages cannot
    // be written.
    let wish = unsafe { &*wish };
    let permille = wish.permille.load(Ordering::Relaxed);
    if permille == 0 {
        return false;
    }
    // SplitMix64.
    let step = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let mut word = wish
        .seed
        .load(Ordering::Relaxed)
        .wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)) % 1000 < permille
}
