//! The network.

use conch_net::affinity;

use crate::finding::{Finding, FindingState};
use crate::host_facts::HostFacts;

pub(crate) fn examine(host: &HostFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(backlog(host));
    findings.extend(interfaces(host));
    findings
}

/// Clients that a listener asks the system to let wait.
const BACKLOG_WISHED: usize = 1_024;

fn backlog(host: &HostFacts) -> Option<Finding> {
    let bound = host.files().number("proc/sys/net/core/somaxconn")?;
    let seen = format!("net.core.somaxconn is {bound}");
    Some(match bound < BACKLOG_WISHED {
        true => Finding::advise(
            FindingState::Warning,
            "new connections",
            seen,
            "of more clients that connect at the same moment some wait a second or more for their \
             next try. sysctl net.core.somaxconn=4096",
        ),
        false => Finding::ok("new connections", seen),
    })
}

/// Interfaces with a link, and whether the CPUs next to them may be used.
fn interfaces(host: &HostFacts) -> Vec<Finding> {
    let usable = &host.topology.cpus;
    let up = host
        .machine()
        .interfaces
        .iter()
        .filter(|interface| interface.is_up);
    up.map(|interface| {
        let near = &interface.locality.cpus;
        let name = &interface.name;
        if near.is_empty() {
            return Finding::ok("network interface", format!("{name}, as near to all CPUs"));
        }
        let seen = format!("{name} is next to CPUs {}", affinity::list_text(near));
        match near.iter().any(|cpu| usable.contains(cpu)) {
            true => Finding::ok("network interface", seen),
            false => Finding::advise(
                FindingState::Warning,
                "network interface",
                seen,
                "none of these CPUs may be used by this process, so what it receives crosses to \
                 another node. Allow some of them: CPUAffinity= of systemd, taskset, \
                 --cpuset-cpus of a container.",
            ),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::RecordedHost;
    use conch_net::machine::testing::{CONTAINER, TWO_SOCKETS};

    #[test]
    fn a_short_backlog_is_told() {
        for (bound, state) in [(128, FindingState::Warning), (4_096, FindingState::Ok)] {
            let text = format!("proc/sys/net/core/somaxconn: {bound}\n");
            let finding = backlog(&RecordedHost::new(&text, 2).host()).unwrap();
            assert_eq!(finding.state, state);
        }
        assert_eq!(backlog(&RecordedHost::new("", 2).host()), None);
    }

    #[test]
    fn an_interface_wants_a_cpu_next_to_it() {
        let near = interfaces(&RecordedHost::new(TWO_SOCKETS, 32).host());
        assert!(!near.is_empty());
        assert!(near.iter().all(|finding| finding.state == FindingState::Ok));
        let recorded = RecordedHost::new(TWO_SOCKETS, 32);
        let mut host = recorded.host();
        host.topology.cpus = (8..16).collect();
        let far = interfaces(&host);
        assert!(
            far.iter()
                .all(|finding| finding.state == FindingState::Warning)
        );
        assert!(interfaces(&RecordedHost::new(CONTAINER, 4).host()).is_empty());
    }
}
