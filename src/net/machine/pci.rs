//! Where PCI devices are.

use super::files::SystemFiles;
use super::nodes::{NumaNode, cpus_of};

/// What is next to a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciLocality {
    /// Its node; none on a machine of one node, and where the firmware does not say.
    pub node: Option<usize>,
    /// The CPUs next to it, ascending; empty if unknown.
    pub cpus: Vec<usize>,
}

/// What is next to the device at `address`.
pub(super) fn read(tree: &SystemFiles<'_>, nodes: &[NumaNode], address: &str) -> PciLocality {
    match normal_address(address) {
        Some(address) => read_device(tree, nodes, &format!("sys/bus/pci/devices/{address}")),
        None => PciLocality::default(),
    }
}

/// What is next to the device of a folder of sysfs. The system writes -1 for an unknown node.
pub(super) fn read_device(tree: &SystemFiles<'_>, nodes: &[NumaNode], folder: &str) -> PciLocality {
    let node = tree
        .number(&format!("{folder}/numa_node"))
        .filter(|id| nodes.iter().any(|node| node.id == *id));
    let told = tree.list(&format!("{folder}/local_cpulist"));
    let cpus = told
        .filter(|cpus| !cpus.is_empty())
        .or_else(|| cpus_of(nodes, node?));
    PciLocality {
        node,
        cpus: cpus.unwrap_or_default(),
    }
}

/// `00000000:3B:00.0` as the system writes it: `0000:3b:00.0`. None for what is no address.
fn normal_address(address: &str) -> Option<String> {
    let (domain, rest) = address.trim().split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hexadecimal = |text: &str| u32::from_str_radix(text, 16).ok();
    let (domain, bus) = (hexadecimal(domain)?, hexadecimal(bus)?);
    let (device, function) = (hexadecimal(device)?, hexadecimal(function)?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}
