//! Resource limits of the process.
//!
//! By libc: rustix has no `mallopt`, and its `getrlimit` returns no error, so that a sandbox which
//! forbids the call would go unnoticed.

use std::io;

/// Soft and hard value of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimit {
    pub soft: u64,
    pub hard: u64,
}

/// Raises the number of files that may be open towards `wanted`, as far as the hard limit allows.
/// Returns the limit now in force.
pub fn raise_open_files(wanted: u64) -> io::Result<ProcessLimit> {
    raise(libc::RLIMIT_NOFILE, wanted)
}

/// Raises the bytes that may be locked in memory towards `wanted`, as far as the hard limit allows.
/// Returns the limit now in force.
pub fn raise_locked_memory(wanted: u64) -> io::Result<ProcessLimit> {
    raise(libc::RLIMIT_MEMLOCK, wanted)
}

/// Where address space is limited, lets the C library's allocator have two arenas instead of one
/// per thread: each takes 64 MiB of it, whatever the threads allocate. To be called before there
/// are threads.
pub fn save_address_space() {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is writable.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    if is_known && limit.rlim_cur != libc::RLIM_INFINITY {
        // SAFETY: no pointers are passed. Refusal leaves things as they were.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
    }
}

fn raise(resource: libc::__rlimit_resource_t, wanted: u64) -> io::Result<ProcessLimit> {
    let mut system = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `system` is writable.
    if unsafe { libc::getrlimit(resource, &raw mut system) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if system.rlim_cur < wanted {
        let raised = libc::rlimit {
            rlim_cur: wanted.min(system.rlim_max),
            rlim_max: system.rlim_max,
        };
        // SAFETY: `raised` is readable. Refusal leaves the old limit, which is returned.
        if unsafe { libc::setrlimit(resource, &raw const raised) } == 0 {
            system = raised;
        }
    }
    Ok(ProcessLimit {
        soft: system.rlim_cur,
        hard: system.rlim_max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raises_but_never_lowers() {
        let now = raise_open_files(0).unwrap();
        let raised = raise_open_files(now.soft).unwrap();
        assert_eq!(now, raised);
        let most = raise_open_files(u64::MAX).unwrap();
        assert!(most.soft >= now.soft && most.soft <= most.hard);
    }
}
