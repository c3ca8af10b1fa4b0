//! What the system tells of the machine: its CPUs, NUMA nodes, network interfaces and PCI devices.
//!
//! Read from sysfs below a root, so that tests have recorded machines. A container may hide any of
//! it: what is missing or malformed is unknown, never an error. No policy, no thread.

mod cpus;
mod files;
mod interfaces;
mod nodes;
mod pci;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use cpus::LogicalCpu;
pub use interfaces::NetworkInterface;
pub use nodes::NumaNode;
pub use pci::PciLocality;

pub use files::SystemFiles;

/// One machine, as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Where PCI devices are looked up; none of a machine of which nothing is known.
    root: Option<PathBuf>,
    /// Those online, ascending.
    pub cpus: Vec<LogicalCpu>,
    /// Ascending, never empty. Nodes of memory alone have no CPUs.
    pub nodes: Vec<NumaNode>,
    /// Those with a device of their own, by name.
    pub interfaces: Vec<NetworkInterface>,
}

impl Machine {
    /// Reads the sysfs that lies below `root` (`/` but in tests). `known_cpus` are what the caller
    /// may use: they exist, whatever sysfs tells.
    pub fn read(root: &Path, known_cpus: &[usize]) -> Machine {
        let tree = SystemFiles::new(root);
        let mut ids = cpus::online(&tree);
        ids.extend(known_cpus);
        ids.sort_unstable();
        ids.dedup();
        let nodes = nodes::read(&tree, &ids);
        let interfaces = interfaces::read(&tree, &nodes);
        Machine {
            root: Some(root.to_owned()),
            cpus: cpus::read(&tree, &ids, &nodes),
            nodes,
            interfaces,
        }
    }

    /// A machine of which nothing is known but its CPUs.
    pub fn uniform(cpus: &[usize]) -> Machine {
        let nodes = vec![NumaNode::only(cpus)];
        let alone = |id: &usize| LogicalCpu::alone(*id, &nodes);
        Machine {
            root: None,
            cpus: cpus.iter().map(alone).collect(),
            nodes,
            interfaces: Vec::new(),
        }
    }

    /// The node and the CPUs next to the PCI device at `address`, such as `0000:3b:00.0`. Capital
    /// letters and a domain of another length, which CUDA writes, name the same device.
    pub fn pci_locality(&self, address: &str) -> PciLocality {
        match &self.root {
            Some(root) => pci::read(&SystemFiles::new(root), &self.nodes, address),
            None => PciLocality::default(),
        }
    }

    /// What is known of a CPU.
    pub fn cpu(&self, id: usize) -> Option<&LogicalCpu> {
        let place = self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        self.cpus.get(place)
    }

    /// The nodes of `cpus`, ascending.
    pub fn nodes_of(&self, cpus: &[usize]) -> Vec<usize> {
        let known = cpus.iter().filter_map(|id| self.cpu(*id)?.node);
        let mut nodes: Vec<usize> = known.collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}
