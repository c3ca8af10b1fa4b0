//! Memory: huge pages, what a control group allows, what is swapped, and what processes share.

use crate::finding::{Finding, FindingState};
use crate::host_facts::HostFacts;
use crate::system::bytes;

pub(crate) fn examine(host: &HostFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(huge_pages(host));
    findings.extend(limit(host));
    findings.extend(swap(host));
    findings.extend(overcommit(host));
    findings.push(shared(host));
    findings
}

fn huge_pages(host: &HostFacts) -> Option<Finding> {
    let text = host
        .files()
        .text("sys/kernel/mm/transparent_hugepage/enabled")?;
    // The one in force stands in brackets.
    let (_, rest) = text.split_once('[')?;
    let (mode, _) = rest.split_once(']')?;
    Some(match mode {
        "never" => Finding::advise(
            FindingState::Warning,
            "huge pages",
            mode,
            "memory for tensors of many megabytes comes in pages of 4 KiB, which cost the system \
             more than the copy of what they hold. echo madvise > \
             /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        "always" => Finding::advise(
            FindingState::Note,
            "huge pages",
            mode,
            "backends and Python processes may hold more memory than they use. The server asks for \
             huge pages itself where they pay: echo madvise > \
             /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        mode => Finding::ok("huge pages", mode),
    })
}

fn limit(host: &HostFacts) -> Option<Finding> {
    let values = host.control_group_values("memory.max");
    let narrowest = values
        .iter()
        .filter_map(|text| text.parse::<u64>().ok())
        .min();
    match narrowest {
        Some(limit) => Some(Finding::advise(
            FindingState::Note,
            "memory limit",
            bytes(limit),
            "models, tensors in flight, clients' shared memory and Python processes count against \
             it; the system ends a process of the group when it is reached.",
        )),
        None if values.is_empty() => None,
        None => Some(Finding::ok("memory limit", "none")),
    }
}

fn swap(host: &HostFacts) -> Option<Finding> {
    let meminfo = host.files().text("proc/meminfo")?;
    let kilobytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let (total, free) = (kilobytes("SwapTotal:")?, kilobytes("SwapFree:")?);
    let used = total.saturating_sub(free).saturating_mul(1_024);
    Some(match total {
        0 => Finding::ok("swap", "none"),
        _ => Finding::advise(
            FindingState::Note,
            "swap",
            format!("{} used", bytes(used)),
            "a model that rests may be swapped out, and its next request waits for the disk. \
             swapoff -a, vm.swappiness=1, or MemorySwapMax=0 of systemd.",
        ),
    })
}

fn overcommit(host: &HostFacts) -> Option<Finding> {
    let mode = host.files().text("proc/sys/vm/overcommit_memory")?;
    (mode == "2").then(|| {
        Finding::advise(
            FindingState::Note,
            "overcommit",
            "vm.overcommit_memory is 2",
            "address space that is only reserved counts as used; engines for GPUs reserve a lot. \
             sysctl vm.overcommit_memory=0 if models fail to load for want of memory.",
        )
    })
}

/// Less is soon used up by a few models in Python, or clients' regions.
const SHARED_BYTES_WISHED: u64 = 1 << 30;

fn shared(host: &HostFacts) -> Finding {
    const SUBJECT: &str = "shared memory";
    let Some((total, free)) = host.shared_bytes else {
        return Finding::advise(
            FindingState::Warning,
            SUBJECT,
            "there is no /dev/shm",
            "models in Python and clients' shared memory need it. Mount a tmpfs there.",
        );
    };
    let seen = format!("/dev/shm has {} of {} free", bytes(free), bytes(total));
    match free < SHARED_BYTES_WISHED {
        true => Finding::advise(
            FindingState::Warning,
            SUBJECT,
            seen,
            "models in Python need up to 64 MiB each, and clients' regions come out of it as well. \
             mount -o remount,size=8G /dev/shm, or --shm-size=8g of a container.",
        ),
        false => Finding::ok(SUBJECT, seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RecordedHost, about};

    #[test]
    fn memory_is_judged_by_what_the_system_says() {
        let text = "sys/kernel/mm/transparent_hugepage/enabled: always madvise [never]\n\
                    proc/self/cgroup: 0::/\nsys/fs/cgroup/memory.max: 4294967296\n\
                    proc/meminfo: MemTotal: 1 kB\\nSwapTotal:  2048 kB\\nSwapFree:  1024 kB\n\
                    proc/sys/vm/overcommit_memory: 2\n";
        let recorded = RecordedHost::new(text, 2);
        let mut host = recorded.host();
        host.shared_bytes = Some((64 << 20, 60 << 20));
        let findings = examine(&host);
        for (subject, state, seen) in [
            ("huge pages", FindingState::Warning, "never"),
            ("memory limit", FindingState::Note, "4 GiB"),
            ("swap", FindingState::Note, "1 MiB used"),
            (
                "overcommit",
                FindingState::Note,
                "vm.overcommit_memory is 2",
            ),
            (
                "shared memory",
                FindingState::Warning,
                "/dev/shm has 60 MiB of 64 MiB free",
            ),
        ] {
            let finding = about(&findings, subject);
            assert_eq!(
                (finding.state, finding.seen.as_str()),
                (state, seen),
                "{subject}"
            );
        }
        host.shared_bytes = None;
        assert_eq!(shared(&host).state, FindingState::Warning);
    }

    #[test]
    fn a_machine_without_fault_is_told_as_good() {
        let text = "sys/kernel/mm/transparent_hugepage/enabled: always [madvise] never\n\
                    proc/self/cgroup: 0::/\nsys/fs/cgroup/memory.max: max\n\
                    proc/meminfo: SwapTotal: 0 kB\\nSwapFree: 0 kB\n\
                    proc/sys/vm/overcommit_memory: 0\n";
        let findings = examine(&RecordedHost::new(text, 2).host());
        assert_eq!(findings.len(), 4);
        assert!(
            findings
                .iter()
                .all(|finding| finding.state == FindingState::Ok)
        );
        // Nothing but the mounted memory is known.
        assert_eq!(examine(&RecordedHost::new("", 2).host()).len(), 1);
    }
}
