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
