//! CPUs: which are online, and which are threads of one core.

use super::files::SystemFiles;
use super::nodes::NumaNode;

/// A CPU as the system counts them: one hardware thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalCpu {
    pub id: usize,
    /// The node that it belongs to, if that is known.
    pub node: Option<usize>,
    /// All threads of its core, itself included, ascending.
    pub siblings: Vec<usize>,
}

impl LogicalCpu {
    /// A CPU of which nothing is known but its node.
    pub(super) fn alone(id: usize, nodes: &[NumaNode]) -> LogicalCpu {
        let home = nodes.iter().find(|node| node.cpus.contains(&id));
        LogicalCpu {
            id,
            node: home.map(|node| node.id),
            siblings: vec![id],
        }
    }
}

/// The numbers of those online; none if the system does not tell.
pub(super) fn online(tree: &SystemFiles<'_>) -> Vec<usize> {
    tree.list("sys/devices/system/cpu/online")
        .unwrap_or_default()
}

/// What is known of the CPUs `ids`.
pub(super) fn read(tree: &SystemFiles<'_>, ids: &[usize], nodes: &[NumaNode]) -> Vec<LogicalCpu> {
    let read = |id: &usize| {
        let topology = format!("sys/devices/system/cpu/cpu{id}/topology");
        let siblings = tree.list(&format!("{topology}/thread_siblings_list"));
        let alone = LogicalCpu::alone(*id, nodes);
        LogicalCpu {
            // A list without the CPU itself is no list of its siblings.
            siblings: siblings
                .filter(|siblings| siblings.contains(id))
                .unwrap_or(alone.siblings),
            ..alone
        }
    };
    ids.iter().map(read).collect()
}
