//! The kernel and the limits of the process.

use conch_net::ring::Setup;

use crate::finding::{Finding, FindingState};
use crate::host_facts::{HostFacts, Requirements};

pub(crate) fn examine(host: &HostFacts, requirements: &Requirements) -> Vec<Finding> {
    let mut findings = vec![io_uring(host)];
    findings.extend(locked_memory(host, requirements));
    findings.extend(open_files(host, requirements));
    findings.extend(clock(host));
    findings
}

fn io_uring(host: &HostFacts) -> Finding {
    let kernel = host.files().text("proc/sys/kernel/osrelease");
    let kernel = kernel.unwrap_or_else(|| String::from("of unknown version"));
    let (state, advice) = match &host.ring {
        Ok(Setup::Deferred) => {
            return Finding::ok(
                "io_uring",
                format!("Linux {kernel}, all that is used is there"),
            );
        }
        Ok(Setup::Cooperative) => (
            FindingState::Warning,
            "Linux 6.1 and later defer completions until a network thread asks for them, which \
             costs less CPU per request. Upgrade the kernel.",
        ),
        Ok(Setup::Plain) => (
            FindingState::Warning,
            "each completion interrupts a network thread: under load a request costs up to half \
             as much CPU again. Linux 6.1 and later do better. Upgrade the kernel.",
        ),
        Err(reason) => (FindingState::Failed, reason.as_str()),
    };
    Finding::advise(state, "io_uring", format!("Linux {kernel}"), advice)
}

fn locked_memory(host: &HostFacts, requirements: &Requirements) -> Option<Finding> {
    let (needed, there) = (requirements.locked_bytes?, host.locked_bytes?);
    let seen = format!("RLIMIT_MEMLOCK is {}", bytes(there));
    Some(match there < needed {
        true => Finding::advise(
            FindingState::Failed,
            "locked memory",
            seen,
            format!(
                "the network threads need {}. Raise it: ulimit -l, LimitMEMLOCK= of systemd, \
                 --ulimit memlock= of a container.",
                bytes(needed)
            ),
        ),
        false => Finding::ok("locked memory", seen),
    })
}

fn open_files(host: &HostFacts, requirements: &Requirements) -> Option<Finding> {
    let there = host.open_files?;
    let seen = format!("RLIMIT_NOFILE can be raised to {there}");
    Some(match there < requirements.open_files {
        true => Finding::advise(
            FindingState::Warning,
            "open files",
            seen,
            format!(
                "a server that may have all its connections opens {}; with fewer it accepts fewer \
                 clients. Raise it: ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of a \
                 container.",
                requirements.open_files
            ),
        ),
        false => Finding::ok("open files", seen),
    })
}

/// Clock sources that a process reads without a system call.
const QUICK_CLOCKS: [&str; 4] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
];

fn clock(host: &HostFacts) -> Option<Finding> {
    const FILE: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = host.files().text(FILE)?;
    Some(match QUICK_CLOCKS.contains(&source.as_str()) {
        true => Finding::ok("clock source", source),
        false => Finding::advise(
            FindingState::Warning,
            "clock source",
            source,
            "each look at the clock is a system call, and a request takes several. Find out in the \
             kernel's log why tsc was given up; where the processor's counter is good, boot with \
             tsc=reliable.",
        ),
    })
}

/// A size as people write it.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    if count == u64::MAX {
        return String::from("unlimited");
    }
    let unit = UNITS.iter().find(|(unit, _)| count >= *unit);
    match unit {
        Some((unit, name)) if count.is_multiple_of(*unit) => format!("{} {name}", count / unit),
        Some((unit, name)) => format!("{:.1} {name}", count as f64 / *unit as f64),
        None => format!("{count} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{REQUIREMENTS, RecordedHost};

    #[test]
    fn what_the_kernel_allows_decides() {
        let recorded = RecordedHost::new("proc/sys/kernel/osrelease: 5.15.0-1\n", 2);
        let ring = |ring| {
            let mut host = recorded.host();
            host.ring = ring;
            io_uring(&host)
        };
        assert_eq!(ring(Ok(Setup::Deferred)).state, FindingState::Ok);
        for setup in [Setup::Cooperative, Setup::Plain] {
            let finding = ring(Ok(setup));
            assert_eq!(finding.state, FindingState::Warning, "{setup:?}");
            assert_eq!(finding.seen, "Linux 5.15.0-1");
        }
        let refused = ring(Err(String::from("forbidden")));
        assert_eq!(refused.state, FindingState::Failed);
        assert_eq!(refused.advice.as_deref(), Some("forbidden"));
    }

    #[test]
    fn limits_are_compared_with_what_is_needed() {
        let recorded = RecordedHost::new("", 2);
        for (files, locked, states) in [
            (
                REQUIREMENTS.open_files,
                512 << 10,
                [FindingState::Ok, FindingState::Ok],
            ),
            (
                REQUIREMENTS.open_files - 1,
                512 << 10,
                [FindingState::Warning, FindingState::Ok],
            ),
            (u64::MAX, 64 << 10, [FindingState::Ok, FindingState::Failed]),
        ] {
            let mut host = recorded.host();
            host.open_files = Some(files);
            host.locked_bytes = Some(locked);
            let seen = [
                open_files(&host, &REQUIREMENTS),
                locked_memory(&host, &REQUIREMENTS),
            ];
            assert_eq!(
                seen.map(|finding| finding.unwrap().state),
                states,
                "{files} {locked}"
            );
        }
        let needs = Requirements {
            locked_bytes: None,
            ..REQUIREMENTS
        };
        assert_eq!(locked_memory(&recorded.host(), &needs), None);
    }

    #[test]
    fn slow_clocks_are_told() {
        for (source, state) in [
            ("tsc", FindingState::Ok),
            ("kvm-clock", FindingState::Ok),
            ("hpet", FindingState::Warning),
            ("acpi_pm", FindingState::Warning),
        ] {
            let line = format!(
                "sys/devices/system/clocksource/clocksource0/current_clocksource: {source}\n"
            );
            let finding = clock(&RecordedHost::new(&line, 2).host()).unwrap();
            assert_eq!((finding.state, finding.seen.as_str()), (state, source));
        }
        assert_eq!(clock(&RecordedHost::new("", 2).host()), None);
    }

    #[test]
    fn sizes_are_readable() {
        for (count, text) in [
            (0, "0 bytes"),
            (1 << 20, "1 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "unlimited"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
