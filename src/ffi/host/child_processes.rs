//! The processes that an instance started: a readiness check for backends that have no hook of
//! their own.
//!
//! Some backends run each instance in a process beside the server, as Triton's Python backend does.
//! Releases of it without ModelInstanceReady go on failing every request when that process has
//! died, and nobody else notices. So an instance whose initialisation left its thread with child
//! processes is ready only while the thread has as many: a backend may start a new one in place of
//! the lost.

use std::fs;
use std::path::{Path, PathBuf};

use conch_engine::{Error, ReadinessCheck};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// The child processes of one thread. Asked on the readiness prober's thread; reads `/proc`.
pub(super) struct ChildProcesses {
    instance: String,
    /// `/proc/<process>/task/<thread>/children`.
    children: PathBuf,
    count: usize,
}

impl ChildProcesses {
    /// Of the calling thread, which is the instance's. None if it has no child process, or the
    /// kernel does not list them.
    pub(super) fn of_this_thread(instance: &str) -> Option<ChildProcesses> {
        // Nearly no process has any, and it may have many threads. Of all kinds: also one whose
        // end sends no SIGCHLD.
        let all_kinds = WaitIdOptions::from_bits_retain(libc::__WALL.cast_unsigned());
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(waitid(WaitId::All, look | all_kinds), Err(Errno::CHILD)) {
            return None;
        }
        let thread = fs::read_link("/proc/thread-self").ok()?;
        let children = Path::new("/proc").join(thread).join("children");
        let count = live_count(&children)?;
        (count > 0).then(|| ChildProcesses {
            instance: instance.to_owned(),
            children,
            count,
        })
    }
}

impl ReadinessCheck for ChildProcesses {
    fn check(&self) -> Result<(), Error> {
        // A thread that is gone has none: its instance is being unloaded.
        if live_count(&self.children).unwrap_or(0) >= self.count {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "a process of model instance '{}' has ended",
            self.instance
        )))
    }
}

/// How many of the processes in this list live.
fn live_count(children: &Path) -> Option<usize> {
    let list = fs::read_to_string(children).ok()?;
    Some(list.split_whitespace().filter(|pid| is_alive(pid)).count())
}

/// Whether a child runs, or waits: not one that has ended and whose parent did not ask how.
fn is_alive(pid: &str) -> bool {
    // "pid (name) state ...", where the name may hold anything.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| {
            let (_, rest) = stat.rsplit_once(") ")?;
            Some(!rest.starts_with(['Z', 'X']))
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_that_ends_is_missed_until_another_takes_its_place() {
        assert!(ChildProcesses::of_this_thread("none").is_none());
        let start = || Command::new("sleep").arg("60").spawn().unwrap();
        let mut child = start();
        let child_processes = ChildProcesses::of_this_thread("one").unwrap();
        // Other threads ask.
        let ask =
            || std::thread::scope(|scope| scope.spawn(|| child_processes.check()).join().unwrap());
        assert_eq!(ask(), Ok(()));
        child.kill().unwrap();
        while is_alive(&child.id().to_string()) {
            std::thread::yield_now();
        }
        let error = ask().unwrap_err();
        assert_eq!(error.message, "a process of model instance 'one' has ended");
        let mut second = start();
        assert_eq!(ask(), Ok(()));
        for child in [&mut child, &mut second] {
            let _ = child.kill();
            child.wait().unwrap();
        }
        assert!(ask().is_err());
    }
}
