//! What of a machine slows a server down or keeps it from starting, and what to do about it.
//!
//! [`Surroundings`] is what the machine tells, read once; [`examine`] judges it and touches
//! nothing. No thread, no state.
#![forbid(unsafe_code)]

mod cpus;
mod finding;
mod gpus;
mod memory;
mod network;
mod surroundings;
mod system;
#[cfg(test)]
mod testing;

pub use finding::{Finding, FindingState, Report};
pub use surroundings::{Needs, Surroundings};

/// Judges `surroundings` for a server with `needs`, in the order in which a user should read it.
pub fn examine(surroundings: &Surroundings, needs: &Needs) -> Report {
    let mut findings = Vec::new();
    findings.extend(system::examine(surroundings, needs));
    findings.extend(cpus::examine(surroundings));
    findings.extend(memory::examine(surroundings));
    findings.extend(network::examine(surroundings));
    findings.extend(gpus::examine(surroundings));
    Report { findings }
}
