//! The address range in which all device memory lies. The CPU cannot touch any of it.
//!
//! As nothing else is ever mapped there, a stale device address is never taken for host memory.

use crate::backing::Backing;

const LEN_MAX: usize = 1 << 40;
const LEN_MIN: usize = 1 << 34;

pub struct Window {
    pub start: u64,
    pub len: u64,
}

impl Window {
    /// As large a range as the process gets; valgrind, for one, refuses the largest.
    pub fn reserve() -> Option<Window> {
        let mut len = LEN_MAX;
        while len >= LEN_MIN {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let start =
                unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
            if start != libc::MAP_FAILED {
                return Some(Window {
                    start: start as u64,
                    len: len as u64,
                });
            }
            len /= 2;
        }
        None
    }

    pub fn contains(&self, address: u64) -> bool {
        address >= self.start && address - self.start < self.len
    }

    fn holds(&self, address: u64, len: u64) -> bool {
        self.contains(address) && len <= self.start + self.len - address
    }

    /// Puts memory at an address of the window. False if the kernel refuses.
    pub fn attach(&self, address: u64, len: u64, backing: &Backing, offset: u64) -> bool {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        self.replace(address, len, flags, backing.descriptor(), offset)
    }

    /// Takes the memory at an address of the window away.
    pub fn detach(&self, address: u64, len: u64) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        self.replace(address, len, flags, -1, 0);
    }

    fn replace(&self, address: u64, len: u64, flags: i32, descriptor: i32, offset: u64) -> bool {
        if !self.holds(address, len) {
            return false;
        }
        let place = address as *mut libc::c_void;
        // SAFETY: the range lies in the window, which is ours and which nobody can access.
        let found = unsafe {
            libc::mmap(
                place,
                len as usize,
                libc::PROT_NONE,
                flags,
                descriptor,
                offset as i64,
            )
        };
        found != libc::MAP_FAILED
    }
}
