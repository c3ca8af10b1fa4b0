//! Network interfaces.

use super::files::SystemFiles;
use super::nodes::NumaNode;
use super::pci::{self, PciLocality};

/// An interface that has a device: no loopback, bridge or tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    pub name: String,
    /// Whether it has a link.
    pub is_up: bool,
    pub locality: PciLocality,
}

const INTERFACES: &str = "sys/class/net";

pub(super) fn read(tree: &SystemFiles<'_>, nodes: &[NumaNode]) -> Vec<NetworkInterface> {
    let names = tree.names(INTERFACES).into_iter();
    let with_device = names.filter(|name| tree.has(&format!("{INTERFACES}/{name}/device")));
    let read = |name: String| {
        let folder = format!("{INTERFACES}/{name}");
        NetworkInterface {
            is_up: tree.text(&format!("{folder}/operstate")).as_deref() == Some("up"),
            locality: pci::read_device(tree, nodes, &format!("{folder}/device")),
            name,
        }
    };
    with_device.map(read).collect()
}
