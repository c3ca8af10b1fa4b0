//! NUMA nodes.

use super::files::SystemFiles;

/// CPUs and memory that are next to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    pub id: usize,
    /// Its CPUs online, ascending.
    pub cpus: Vec<usize>,
    /// How much memory it has, if that is known.
    pub memory_bytes: Option<u64>,
    /// To each node in order of their numbers, 10 to itself; empty if unknown.
    pub distances: Vec<usize>,
}

impl NumaNode {
    /// The node of a machine that tells of none.
    pub(super) fn only(cpus: &[usize]) -> NumaNode {
        NumaNode {
            id: 0,
            cpus: cpus.to_vec(),
            memory_bytes: None,
            distances: Vec::new(),
        }
    }
}

const NODES: &str = "sys/devices/system/node";

/// The nodes of the machine, whose CPUs online are `ids`; one node of them all if none is told.
pub(super) fn read(tree: &SystemFiles<'_>, ids: &[usize]) -> Vec<NumaNode> {
    let names = tree.names(NODES);
    let numbers = names.iter().filter_map(|name| {
        let number: usize = name.strip_prefix("node")?.parse().ok()?;
        Some((number, name))
    });
    let mut nodes: Vec<NumaNode> = numbers
        .filter_map(|(id, name)| read_node(tree, id, &format!("{NODES}/{name}"), ids))
        .collect();
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        return vec![NumaNode::only(ids)];
    }
    nodes.sort_unstable_by_key(|node| node.id);
    nodes
}

fn read_node(tree: &SystemFiles<'_>, id: usize, folder: &str, ids: &[usize]) -> Option<NumaNode> {
    let mut cpus = tree.list(&format!("{folder}/cpulist"))?;
    cpus.retain(|cpu| ids.contains(cpu));
    let meminfo = tree.text(&format!("{folder}/meminfo"));
    let distances = tree.text(&format!("{folder}/distance")).unwrap_or_default();
    let distances = distances.split_whitespace().map(str::parse);
    Some(NumaNode {
        id,
        cpus,
        memory_bytes: meminfo.and_then(|text| total_bytes(&text)),
        distances: distances.collect::<Result<_, _>>().unwrap_or_default(),
    })
}

/// Of `Node 0 MemTotal:       263780948 kB` and further lines.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains(" MemTotal:"))?;
    let (_, amount) = line.split_once(':')?;
    let kibibytes: u64 = amount.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1_024)
}

/// The CPUs of node `id`.
pub(super) fn cpus_of(nodes: &[NumaNode], id: usize) -> Option<Vec<usize>> {
    let node = nodes.iter().find(|node| node.id == id)?;
    Some(node.cpus.clone())
}
