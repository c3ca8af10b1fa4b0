//! Resource limits of the process.

use std::io;

/// Soft and hard value of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub soft: u64,
    pub hard: u64,
}

/// Raises the number of files that may be open towards `wanted`, as far as the hard limit allows. Returns the limit now in force.
pub fn raise_open_files(wanted: u64) -> io::Result<Limit> {
    raise(libc::RLIMIT_NOFILE, wanted)
}

/// Raises the bytes that may be locked in memory towards `wanted`, as far as the hard limit allows. Returns the limit now in force.
pub fn raise_locked_memory(wanted: u64) -> io::Result<Limit> {
    raise(libc::RLIMIT_MEMLOCK, wanted)
}

fn raise(resource: libc::__rlimit_resource_t, wanted: u64) -> io::Result<Limit> {
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
    Ok(Limit {
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
