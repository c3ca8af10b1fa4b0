//! What of a machine slows a server down or keeps it from starting, and what to do about it.
//!
//! [`HostFacts`] is what the machine tells, read once; [`examine`] judges it and touches
//! nothing. No thread, no state.
#![forbid(unsafe_code)]

mod cpus;
mod finding;
mod gpus;
mod host_facts;
mod memory;
mod network;
mod system;
#[cfg(test)]
mod testing;

pub use finding::{Finding, FindingState, Report};
pub use host_facts::{HostFacts, Requirements};

/// Judges `host` for a server with `requirements`, in the order in which a user should read it.
pub fn examine(host: &HostFacts, requirements: &Requirements) -> Report {
    let mut findings = Vec::new();
    findings.extend(system::examine(host, requirements));
    findings.extend(cpus::examine(host));
    findings.extend(memory::examine(host));
    findings.extend(network::examine(host));
    findings.extend(gpus::examine(host));
    Report { findings }
}

#[cfg(test)]
mod tests {
    use conch_net::machine::testing::TWO_SOCKETS;

    use super::*;
    use crate::testing::{REQUIREMENTS, RecordedHost};

    /// What the machine of the documented example has beside its CPUs.
    const OTHER_FILES: &str = "proc/sys/kernel/osrelease: 6.8.0-48-generic\n\
         proc/sys/net/core/somaxconn: 4096\n\
         sys/devices/system/clocksource/clocksource0/current_clocksource: tsc\n\
         sys/kernel/mm/transparent_hugepage/enabled: always [madvise] never\n";

    /// docs/OPERATIONS.md shows a whole report.
    #[test]
    fn the_documented_example_is_a_report() {
        let page = include_str!("../../docs/OPERATIONS.md");
        let (_, behind) = page
            .split_once("```sh\nconch doctor\n```\n\n```text\n")
            .expect("the page has an example");
        let (shown, _) = behind.split_once("```").expect("it ends");
        let governors = (0..32).map(|cpu| {
            format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor: powersave\n")
        });
        let files = [TWO_SOCKETS, "\n", OTHER_FILES].concat() + &governors.collect::<String>();
        let recorded = RecordedHost::new(&files, 32);
        let requirements = Requirements {
            locked_bytes: None,
            ..REQUIREMENTS
        };
        assert_eq!(shown, examine(&recorded.host(), &requirements).to_lines());
    }
}
