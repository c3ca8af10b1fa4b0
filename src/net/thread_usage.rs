//! What the calling thread has used of the machine so far.
//!
//! rustix has no `getrusage`.

use std::io;
use std::mem::MaybeUninit;

/// Since the thread began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Time on a CPU, to the nanosecond.
    pub cpu_ns: u64,
    /// Pages that it touched first, or that were taken from it, without a read of a disk.
    pub minor_fault_count: u64,
    /// Pages that had to be read from a disk.
    pub major_fault_count: u64,
    /// How often it lost its CPU while it had something to do: others wanted it, its quota was used
    /// up, or it offered the CPU.
    pub preemption_count: u64,
}

impl ThreadUsage {
    /// Two system calls.
    ///
    /// # Errors
    /// The system's; none are known for these calls.
    pub fn of_current_thread() -> io::Result<ThreadUsage> {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the structure is writable; the call concerns the calling thread alone.
        if unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so it has filled the structure.
        let usage = unsafe { usage.assume_init() };
        Ok(ThreadUsage {
            cpu_ns: cpu.tv_sec.cast_unsigned() * 1_000_000_000 + cpu.tv_nsec.cast_unsigned(),
            minor_fault_count: count(usage.ru_minflt),
            major_fault_count: count(usage.ru_majflt),
            preemption_count: count(usage.ru_nivcsw),
        })
    }

    /// What was used since `earlier`.
    pub fn since(self, earlier: ThreadUsage) -> ThreadUsage {
        ThreadUsage {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            minor_fault_count: (self.minor_fault_count).saturating_sub(earlier.minor_fault_count),
            major_fault_count: (self.major_fault_count).saturating_sub(earlier.major_fault_count),
            preemption_count: (self.preemption_count).saturating_sub(earlier.preemption_count),
        }
    }
}

fn count(value: libc::c_long) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_fresh_memory_are_used_up() {
        let before = ThreadUsage::of_current_thread().unwrap();
        // As many pages as it has, each touched first by this.
        let memory = vec![1_u8; 4 << 20];
        let sum: u64 = memory.iter().map(|byte| u64::from(*byte)).sum();
        let used = ThreadUsage::of_current_thread().unwrap().since(before);
        assert_eq!(sum, 4 << 20);
        assert!(used.cpu_ns > 0);
        // One of 4 MiB where the system gives huge pages.
        assert!(used.minor_fault_count > 0);
    }

    #[test]
    fn a_sleep_uses_little() {
        let before = ThreadUsage::of_current_thread().unwrap();
        let slept = std::time::Duration::from_millis(50);
        std::thread::sleep(slept);
        let used = ThreadUsage::of_current_thread().unwrap().since(before);
        // A fraction of a millisecond; the margin is for a busy machine's interrupts.
        assert!(u128::from(used.cpu_ns) < slept.as_nanos() / 2, "{used:?}");
    }
}
