//! The machine as the server sees it: CPU time and memory, from `/proc` and the control group.
//! Linux only; what cannot be read is left out of the metrics rather than reported as 0.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use conch_engine::gpus::GpuHost;
use conch_memory::Budget;

use super::text::{push_head, push_sample};

/// How busy the machine's CPUs were between two looks.
#[derive(Debug)]
pub(crate) struct CpuMeter {
    interval: Duration,
    last: Mutex<UsageSample>,
}

#[derive(Clone, Copy, Debug)]
struct UsageSample {
    taken: Instant,
    times: CpuTimes,
    utilization: Option<f64>,
}

/// Jiffies since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    idle: u64,
}

impl CpuMeter {
    /// Starts measuring; figures are refreshed at most once per `interval`.
    pub(crate) fn start(interval: Duration) -> CpuMeter {
        let times = fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| parse_stat(&text))
            .unwrap_or_default();
        CpuMeter {
            interval,
            last: Mutex::new(UsageSample {
                taken: Instant::now(),
                times,
                utilization: None,
            }),
        }
    }

    /// Share of busy CPU time, 0 to 1, since the look before (the first: since the start).
    fn utilization(&self) -> Option<f64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.utilization.is_none() || last.taken.elapsed() >= self.interval {
            let times = parse_stat(&fs::read_to_string("/proc/stat").ok()?)?;
            let fresh = times.utilization_since(last.times);
            // Two looks within one jiffy say nothing new.
            last.utilization = fresh.or(last.utilization).or(Some(0.0));
            (last.taken, last.times) = (Instant::now(), times);
        }
        last.utilization
    }

    pub(crate) fn render(&self, text: &mut String) {
        if let Some(utilization) = self.utilization() {
            push_gauge(
                text,
                "nv_cpu_utilization",
                "CPU utilization rate [0.0 - 1.0]",
                utilization,
            );
        }
        if let Some((total_bytes, used_bytes)) = fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| parse_meminfo(&text))
        {
            push_gauge(
                text,
                "nv_cpu_memory_total_bytes",
                "CPU total memory (RAM), in bytes",
                total_bytes as f64,
            );
            push_gauge(
                text,
                "nv_cpu_memory_used_bytes",
                "CPU used memory (RAM), in bytes",
                used_bytes as f64,
            );
        }
    }
}

impl CpuTimes {
    fn utilization_since(self, earlier: CpuTimes) -> Option<f64> {
        let busy = self.busy.saturating_sub(earlier.busy) as f64;
        let all = busy + self.idle.saturating_sub(earlier.idle) as f64;
        (all > 0.0).then(|| busy / all)
    }
}

/// Memory that this process may use: the control group's limit or the machine's, whichever is less.
/// 16 GiB where neither is known.
pub fn memory_total_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| parse_meminfo(&text))
        .map(|(total, _)| total);
    machine
        .into_iter()
        .chain(group_limits())
        .min()
        .unwrap_or(16 << 30)
}

/// Limits of this process's control group and of all groups above it.
fn group_limits() -> Vec<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut limits = Vec::new();
    for line in groups.lines() {
        // `0::/path` for the unified hierarchy, `n:memory:/path` for the old one.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            controllers if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the path may be the host's and not be there; its root then is the group's
        // own.
        for ancestor in std::path::Path::new(path).ancestors() {
            let relative = ancestor.strip_prefix("/").unwrap_or(ancestor);
            let limit = fs::read_to_string(std::path::Path::new(root).join(relative).join(file));
            limits.extend(limit.ok().and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits
}

/// The pool of pinned host memory. While no GPU is in use there is none: the size that was asked
/// for, as upstream, and nothing of it in use.
pub(super) fn render_pinned(text: &mut String, gpus: &GpuHost, wanted_bytes: u64) {
    let usage = gpus.pinned_usage();
    let total_bytes = usage.map_or(wanted_bytes, |usage| usage.total_bytes);
    push_gauge(
        text,
        "nv_pinned_memory_pool_total_bytes",
        "Pinned memory pool total memory size, in bytes",
        total_bytes as f64,
    );
    push_gauge(
        text,
        "nv_pinned_memory_pool_used_bytes",
        "Pinned memory pool used memory size, in bytes",
        usage.map_or(0, |usage| usage.used_bytes) as f64,
    );
}

fn push_gauge(text: &mut String, name: &str, help: &str, value: f64) {
    push_head(text, name, help, "gauge");
    push_sample(text, name, &[], value);
}

/// The `cpu` line: user nice system idle iowait irq softirq steal …
fn parse_stat(text: &str) -> Option<CpuTimes> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let [user, nice, system, idle, iowait, irq, softirq, rest @ ..] = fields.as_slice() else {
        return None;
    };
    let steal = rest.first().copied().unwrap_or(0);
    Some(CpuTimes {
        busy: user + nice + system + irq + softirq + steal,
        idle: idle + iowait,
    })
}

/// Total and used (total less available) bytes.
fn parse_meminfo(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    let total = field("MemTotal:")?;
    Some((total, total.saturating_sub(field("MemAvailable:")?)))
}

/// What requests hold of the budget of bytes.
pub(super) fn render_held(text: &mut String, budget: &Budget) {
    push_gauge(
        text,
        "conch_request_memory_held_bytes",
        "Memory that requests and responses hold, in bytes",
        budget.used_bytes() as f64,
    );
    push_gauge(
        text,
        "conch_request_memory_limit_bytes",
        "Memory that requests and responses may hold, in bytes",
        budget.limit_bytes() as f64,
    );
    let name = "conch_request_memory_refused_total";
    let help = "Times that memory was refused to a request because too much was held";
    push_head(text, name, help, "counter");
    push_sample(text, name, &[], budget.refused_count() as f64);
}

/// What was given up so that the server goes on: lines that the log could not take, connections
/// that held memory and did not move. Nothing as long as there are none.
pub(crate) fn render_dropped(text: &mut String, connection_count: u64) {
    let counters = [
        (
            "conch_log_lines_dropped_total",
            "Log lines dropped because the reader of the log did not keep up",
            conch_log::dropped(),
        ),
        (
            "conch_connections_dropped_total",
            "Connections dropped that held request memory without moving while it was scarce",
            connection_count,
        ),
    ];
    for (name, help, count) in counters {
        if count > 0 {
            push_head(text, name, help, "counter");
            push_sample(text, name, &[], count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_linux_shows() {
        let stat = "cpu  100 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        let earlier = CpuTimes {
            busy: 171,
            idle: 450,
        };
        assert_eq!(parse_stat(stat), Some(earlier));
        let later = CpuTimes {
            busy: 181,
            idle: 480,
        };
        assert_eq!(later.utilization_since(earlier), Some(0.25));
        assert_eq!(earlier.utilization_since(earlier), None);
        assert_eq!(parse_stat("cpu  1 2 3"), None);
        assert_eq!(
            parse_meminfo("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n"),
            Some((1_024_000, 614_400))
        );
        assert_eq!(parse_meminfo("MemTotal:  1000 kB\n"), None);
    }

    #[test]
    fn this_machine_has_memory_and_a_utilization() {
        assert!(memory_total_bytes() > 1 << 20);
        let meter = CpuMeter::start(Duration::from_secs(1));
        let mut text = String::new();
        meter.render(&mut text);
        assert!(text.contains("# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization "));
        assert!(text.contains("\nnv_cpu_memory_total_bytes "));
        let utilization = meter.utilization().unwrap();
        assert!((0.0..=1.0).contains(&utilization));
    }
}
