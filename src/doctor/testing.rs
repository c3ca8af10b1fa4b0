//! Recorded machines for the tests of this crate.

use conch_net::machine::testing::RecordedMachine;

use crate::finding::Finding;
use crate::host_facts::{HostFacts, Requirements};

pub(crate) const REQUIREMENTS: Requirements = Requirements {
    open_files: 66_048,
    locked_bytes: Some(512 << 10),
};

/// A machine of which a few files are known.
pub(crate) struct RecordedHost {
    machine: RecordedMachine,
    cpus: Vec<usize>,
}

impl RecordedHost {
    /// `text` has a file in each line: `path: content`.
    pub(crate) fn new(text: &str, cpu_count: usize) -> RecordedHost {
        RecordedHost {
            machine: RecordedMachine::new(text),
            cpus: (0..cpu_count).collect(),
        }
    }

    pub(crate) fn host(&self) -> HostFacts {
        self.limited(None)
    }

    /// With a quota.
    pub(crate) fn limited(&self, quota_cpus: Option<f64>) -> HostFacts {
        HostFacts::recorded(self.machine.root(), &self.cpus, quota_cpus)
    }
}

/// The finding about `subject`.
pub(crate) fn about<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.subject == subject);
    found.unwrap_or_else(|| panic!("nothing about {subject}: {findings:?}"))
}
