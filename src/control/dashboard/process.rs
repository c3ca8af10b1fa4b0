//! What this process uses, from `/proc`. 0 where that cannot be read.

use std::fs;

use serde::Serialize;

/// Kernel ticks of user time: `USER_HZ` is 100 for every program of Linux.
const TICK_US: u64 = 10_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct ProcessFigures {
    pub(super) resident_bytes: u64,
    pub(super) threads: u64,
    /// Of all CPUs; since the start in a reading, since the reading before in a document.
    pub(super) cpu_us: u64,
}

impl ProcessFigures {
    pub(super) fn read() -> ProcessFigures {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        ProcessFigures {
            resident_bytes: status_field(&status, "VmRSS:").saturating_mul(1024),
            threads: status_field(&status, "Threads:"),
            cpu_us: cpu_ticks(&stat).saturating_mul(TICK_US),
        }
    }

    /// With the CPU time since `earlier`.
    pub(super) fn since(self, earlier: ProcessFigures) -> ProcessFigures {
        ProcessFigures {
            cpu_us: self.cpu_us.saturating_sub(earlier.cpu_us),
            ..self
        }
    }
}

fn status_field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// User and system time. The name of the program is in brackets, and may hold anything.
fn cpu_ticks(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let times = fields.split_whitespace().skip(11).take(2);
    times.filter_map(|time| time.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_linux_shows() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 40 2 0 0 20 0 3 0 9";
        assert_eq!(cpu_ticks(stat), 42);
        assert_eq!(cpu_ticks("7"), 0);
        let status = "Name:\tx\nVmRSS:\t   12 kB\nThreads:\t3\n";
        assert_eq!(status_field(status, "VmRSS:"), 12);
        assert_eq!(status_field(status, "Threads:"), 3);
        assert_eq!(status_field("", "Threads:"), 0);
        let here = ProcessFigures::read();
        assert!(here.resident_bytes > 1 << 20 && here.threads > 0);
        let later = ProcessFigures {
            cpu_us: here.cpu_us + 5,
            ..here
        };
        assert_eq!(later.since(here).cpu_us, 5);
    }
}
