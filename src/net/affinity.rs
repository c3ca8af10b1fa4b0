//! On which CPUs threads run, and how readily.
//!
//! rustix has neither `set_mempolicy` nor `sched_setattr`, nor has the C library: these are called
//! by their numbers.

use std::io;
use std::num::NonZeroU64;

use rustix::process::{Pid, getpid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that the calling thread may use, ascending; never empty.
pub fn current_cpus() -> io::Result<Vec<usize>> {
    cpus_of(None)
}

/// The CPUs that the process may use: those of its main thread, which nobody confines.
pub fn process_cpus() -> io::Result<Vec<usize>> {
    cpus_of(Some(getpid()))
}

/// The CPU that the calling thread runs on now.
pub fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// The system's number of the calling thread, as in `/proc/self/task`.
pub fn current_thread_id() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

/// Of the calling thread if there is no id.
fn cpus_of(thread_id: Option<Pid>) -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(thread_id)?;
    Ok((0..CPUS_MAX).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Confines the calling thread to `cpus`. Threads and processes that it starts inherit the set.
///
/// # Errors
/// If `cpus` is empty, names a CPU beyond the system's, or none of them may be used.
pub fn confine_current_thread(cpus: &[usize]) -> io::Result<()> {
    confine_thread(0, cpus)
}

/// [`confine_current_thread`] of another thread of this process, by its number
/// ([`current_thread_id`]), or of the calling one (0).
///
/// # Errors
/// As there, and if there is no such thread.
pub fn confine_thread(thread_id: i32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CPUS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("there is no CPU {cpu}"),
            ));
        }
        set.set(*cpu);
    }
    Ok(sched_setaffinity(Pid::from_raw(thread_id), &set)?)
}

/// `cpus`, which ascend, as people write them: `0-3,8`.
pub fn list_text(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let texts: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

/// CPUs are numbered below this.
pub const CPUS_MAX: usize = CpuSet::MAX_CPU;

/// Has the calling thread, and those that it starts, take memory from NUMA node `node` only.
///
/// # Errors
/// If there is no such node, or the system does not allow it (containers often do not).
pub fn bind_memory_of_current_thread(node: usize) -> io::Result<()> {
    set_memory_policy(libc::MPOL_BIND, node)
}

/// Has the calling thread, and those that it starts, take memory from NUMA node `node` while that
/// has some, and then from any.
///
/// # Errors
/// As [`bind_memory_of_current_thread`].
pub fn prefer_memory_of_current_thread(node: usize) -> io::Result<()> {
    set_memory_policy(libc::MPOL_PREFERRED, node)
}

fn set_memory_policy(mode: libc::c_int, node: usize) -> io::Result<()> {
    const WORD_BITS: usize = usize::BITS as usize;
    let mut mask = [0_usize; NODES_MAX / WORD_BITS];
    let Some(word) = mask.get_mut(node / WORD_BITS) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("there is no node {node}"),
        ));
    };
    *word = 1 << (node % WORD_BITS);
    // The kernel looks at one bit less than it is told.
    // SAFETY: the mask is readable and has the bits stated; the call concerns the calling thread
    // alone.
    let outcome =
        unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), NODES_MAX + 1) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// As many nodes as Linux is built for.
const NODES_MAX: usize = 1_024;

/// Has the calling thread be nicer by `nice` than the process' main thread, which nobody lowers (on
/// Linux niceness is the thread's own, not the process'); 19 is the most. A thread that is as nice
/// already, as the one that started it, stays as it is.
pub fn lower_priority_of_current_thread(nice: i32) -> io::Result<()> {
    let wanted = getpriority_process(Some(getpid()))?.saturating_add(nice);
    if getpriority_process(None)? < wanted {
        setpriority_process(None, wanted)?;
    }
    Ok(())
}

/// Asks for turns of `slice_ns` (100 us to 100 ms), where the system's own is some milliseconds:
/// when the calling thread wakes up, it need not wait for the end of a longer turn of somebody
/// else. Its share of the CPU is what it was. Threads that it starts have turns of the system's
/// length again, unless its niceness is negative, which they would lose along with it.
///
/// Linux takes this from 6.12 on; earlier ones ignore it, and so does this for a thread that
/// somebody has given another policy.
///
/// # Errors
/// If the system does not allow it (containers may not).
pub fn shorten_turns_of_current_thread(slice_ns: u64) -> io::Result<()> {
    let mut attributes = libc::sched_attr {
        size: ATTRIBUTES_SIZE,
        ..EMPTY_ATTRIBUTES
    };
    // SAFETY: the structure is writable and as large as stated; 0 is the calling thread.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            0,
            &raw mut attributes,
            ATTRIBUTES_SIZE,
            0,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    if !u32::try_from(libc::SCHED_OTHER).is_ok_and(|usual| usual == attributes.sched_policy) {
        return Ok(());
    }
    let wanted = libc::sched_attr {
        size: ATTRIBUTES_SIZE,
        sched_policy: attributes.sched_policy,
        sched_nice: attributes.sched_nice,
        sched_flags: if attributes.sched_nice < 0 {
            attributes.sched_flags
        } else {
            attributes.sched_flags | RESET_ON_FORK
        },
        sched_runtime: slice_ns,
        ..EMPTY_ATTRIBUTES
    };
    // SAFETY: the structure is readable and as large as stated; 0 is the calling thread.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// SCHED_FLAG_RESET_ON_FORK.
const RESET_ON_FORK: u64 = 1;

/// Of the structure's first version, which all kernels know.
const ATTRIBUTES_SIZE: u32 = 48;

const EMPTY_ATTRIBUTES: libc::sched_attr = libc::sched_attr {
    size: 0,
    sched_policy: 0,
    sched_flags: 0,
    sched_nice: 0,
    sched_priority: 0,
    sched_runtime: 0,
    sched_deadline: 0,
    sched_period: 0,
};

/// Lets timed waits of the calling thread end up to `slack_ns` late (the system's default is 50
/// us); 0 restores the default.
pub fn set_timer_slack_of_current_thread(slack_ns: u64) -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(NonZeroU64::new(
        slack_ns,
    ))?)
}

/// How many CPUs' worth of time the process' cgroup grants (its quota over its period); none
/// without a quota.
pub fn quota_cpus() -> Option<f64> {
    let root = std::path::Path::new("/sys/fs/cgroup");
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or("");
    // The quota of every enclosing group applies too; the narrowest counts.
    let mut folder = root.join(path);
    let mut narrowest: Option<f64> = None;
    loop {
        if let Ok(text) = std::fs::read_to_string(folder.join("cpu.max"))
            && let Some(cpus) = parse_quota(&text)
        {
            narrowest = Some(narrowest.map_or(cpus, |known| known.min(cpus)));
        }
        if folder == root || !folder.pop() {
            return narrowest;
        }
    }
}

/// The CPUs of a quota, from `cpu.max`: `<quota us|max> <period us>`.
pub fn parse_quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confines_and_reads_back() {
        std::thread::spawn(|| {
            let cpus = current_cpus().unwrap();
            confine_current_thread(&cpus[..1]).unwrap();
            assert_eq!(current_cpus().unwrap(), &cpus[..1]);
            assert!(confine_current_thread(&[]).is_err());
            assert!(confine_current_thread(&[1 << 20]).is_err());
            let process = getpriority_process(Some(getpid())).unwrap();
            for (nice, expected) in [(5, 5), (5, 5), (2, 5), (7, 7)] {
                lower_priority_of_current_thread(nice).unwrap();
                let own = getpriority_process(None).unwrap();
                assert_eq!(own, (process + expected).min(19), "{nice}");
            }
            // What it starts does not add to that.
            let successor = std::thread::spawn(|| {
                lower_priority_of_current_thread(5).unwrap();
                getpriority_process(None).unwrap()
            });
            assert_eq!(successor.join().unwrap(), (process + 7).min(19));
            assert!(bind_memory_of_current_thread(1 << 20).is_err());
            assert!(
                bind_memory_of_current_thread(1_000).is_err(),
                "there is no such node"
            );
            assert!(prefer_memory_of_current_thread(1 << 20).is_err());
            assert!(prefer_memory_of_current_thread(1_000).is_err());
            shorten_turns_of_current_thread(200_000).unwrap();
            set_timer_slack_of_current_thread(1_000).unwrap();
            assert_eq!(rustix::thread::current_timer_slack().unwrap(), 1_000);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn confines_another_thread() {
        let (send, receive) = std::sync::mpsc::channel();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            send.send(current_thread_id()).unwrap();
            let _ = is_done.recv();
            current_cpus().unwrap()
        });
        let first = &current_cpus().unwrap()[..1];
        let thread_id = receive.recv().unwrap();
        assert_ne!(thread_id, current_thread_id());
        confine_thread(thread_id, first).unwrap();
        drop(done);
        assert_eq!(other.join().unwrap(), first);
        assert!(confine_thread(i32::MAX, first).is_err());
        assert!(!process_cpus().unwrap().is_empty());
    }

    #[test]
    fn writes_lists() {
        for (cpus, expected) in [
            (&[][..], ""),
            (&[3], "3"),
            (&[0, 1], "0-1"),
            (&[0, 1, 2, 5, 7, 8], "0-2,5,7-8"),
        ] {
            assert_eq!(list_text(cpus), expected);
        }
    }

    #[test]
    fn reads_quotas() {
        for (text, expected) in [
            ("max 100000\n", None),
            ("200000 100000\n", Some(2.0)),
            ("50000 100000", Some(0.5)),
            ("", None),
            ("1 0", None),
            ("x y", None),
        ] {
            assert_eq!(parse_quota(text), expected, "{text:?}");
        }
    }
}
