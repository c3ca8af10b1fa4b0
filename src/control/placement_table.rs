//! The table of the log that says where threads run, and what of the machine is where.
//!
//! For a server only: a library in somebody else's process has no shards, and no say in where that
//! process' threads are.

use conch_engine::threads::placement::Placement;
use conch_engine::threads::topology::Topology;
use conch_net::affinity::list_text;
use conch_net::machine::{Machine, NumaNode};

use crate::options::EngineOptions;
use crate::start_tables::{TextTable, log_table};

/// Logs where the shards and cores of a server run.
pub(crate) fn log_placement(options: &EngineOptions, topology: &Topology, placement: &Placement) {
    if options.shard_cpus.is_empty() {
        return;
    }
    let pinned = options.pins_shards.then_some(&*options.shard_cpus);
    let table = placement_table(pinned, options.shard_cpus.len(), topology, placement);
    log_table(&table);
}

/// `pinned`: the CPU of each of the `shard_count` shards, if they are bound to them.
fn placement_table(
    pinned: Option<&[usize]>,
    shard_count: usize,
    topology: &Topology,
    placement: &Placement,
) -> TextTable {
    let mut rows = Rows {
        machine: &topology.machine,
        table: TextTable::new(&["Thread or Device", "CPUs", "NUMA Node", "Description"]),
    };
    rows.push_shards(pinned, shard_count, &topology.cpus);
    let default = &placement.default;
    let priority = if default.gives_way { "nice +5" } else { "-" };
    rows.push("cores", &default.cpus, priority);
    rows.push("watchdog, offload, timer", &topology.cpus, "-");
    rows.push_nodes();
    rows.push_interfaces();
    for (gpu, at_gpu) in &*placement.gpus {
        let what = format!("GPU {}", gpu.device_id);
        let locality = rows.machine.pci_locality(&gpu.pci_address);
        let node = locality.node.map(|node| node.to_string());
        let description = format!("{}, {}", gpu.name, gpu.pci_address);
        rows.push_at(&what, &at_gpu.cpus, node.as_deref(), &description);
    }
    rows.table
}

struct Rows<'a> {
    machine: &'a Machine,
    table: TextTable,
}

impl Rows<'_> {
    /// A row for each node that has shards, in their order.
    fn push_shards(&mut self, pinned: Option<&[usize]>, shard_count: usize, all: &[usize]) {
        let Some(cpus) = pinned else {
            return self.push(&shards_text(0, shard_count), all, "on any of these CPUs");
        };
        let mut first = 0;
        let machine = self.machine;
        let node_of = |cpu: &usize| machine.cpu(*cpu).and_then(|cpu| cpu.node);
        for group in cpus.chunk_by(|one, next| node_of(one) == node_of(next)) {
            self.push(
                &shards_text(first, group.len()),
                group,
                "a CPU each, in order",
            );
            first += group.len();
        }
    }

    fn push_nodes(&mut self) {
        let is_worth = |node: &&NumaNode| {
            !node.cpus.is_empty() || node.memory_bytes.is_some_and(|bytes| bytes > 0)
        };
        for node in self.machine.nodes.iter().filter(is_worth) {
            let (what, id) = (format!("node {}", node.id), node.id.to_string());
            let description = match node.memory_bytes {
                Some(bytes) => format!("{} GiB", bytes >> 30),
                None => "-".to_owned(),
            };
            self.push_at(&what, &node.cpus, Some(&id), &description);
        }
    }

    /// Those with a link. Hosts of virtual machines have hundreds.
    fn push_interfaces(&mut self) {
        let interfaces = &self.machine.interfaces;
        let mut up = interfaces.iter().filter(|interface| interface.is_up);
        for interface in up.by_ref().take(INTERFACES_MAX) {
            let node = interface.locality.node.map(|node| node.to_string());
            let cpus = &interface.locality.cpus;
            self.push_at(&interface.name, cpus, node.as_deref(), "network interface");
        }
        let left = up.count();
        if left > 0 {
            self.push(&format!("{left} more"), &[], "network interfaces");
        }
    }

    /// A row whose nodes are those of its CPUs.
    fn push(&mut self, what: &str, cpus: &[usize], description: &str) {
        let nodes = list_text(&self.machine.nodes_of(cpus));
        let nodes = (!nodes.is_empty()).then_some(&*nodes);
        self.push_at(what, cpus, nodes, description);
    }

    fn push_at(&mut self, what: &str, cpus: &[usize], node: Option<&str>, description: &str) {
        let cpus = match cpus.is_empty() {
            true => "-".to_owned(),
            false => list_text(cpus),
        };
        let cells = [what, &cpus, node.unwrap_or("-"), description];
        self.table.push(&cells);
    }
}

const INTERFACES_MAX: usize = 16;

fn shards_text(first: usize, count: usize) -> String {
    match count {
        0 | 1 => format!("shard-{first}"),
        _ => format!("shard-{first} to shard-{}", first + count - 1),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use conch_engine::threads::placement::GpuPlace;
    use conch_net::machine::testing::{RecordedMachine, TWO_SOCKETS};

    use super::*;

    fn table(machine: Machine, cpu_count: usize, shards: usize, pins: bool) -> String {
        let cpus: Vec<usize> = (0..cpu_count).collect();
        let topology = Topology {
            cpus,
            cpu_count,
            machine,
        };
        let shard_cpus = topology.shard_cpus(Some(shards));
        let gpus = match topology.machine.interfaces.is_empty() {
            true => Vec::new(),
            false => vec![GpuPlace {
                device_id: 1,
                name: "NVIDIA H200".to_owned(),
                pci_address: "0000:af:00.0".to_owned(),
            }],
        };
        let placement = Placement::new(&topology, &shard_cpus, true, Arc::default(), &gpus);
        let pinned = pins.then_some(&*shard_cpus);
        placement_table(pinned, shards, &topology, &placement).to_string()
    }

    #[test]
    fn a_plain_host_has_a_handful_of_rows() {
        let expected = "\
+--------------------------+------+-----------+----------------------+
| Thread or Device         | CPUs | NUMA Node | Description          |
+--------------------------+------+-----------+----------------------+
| shard-0 to shard-1       | 0-1  | 0         | a CPU each, in order |
| cores                    | 0-1  | 0         | nice +5              |
| watchdog, offload, timer | 0-1  | 0         | -                    |
| node 0                   | 0-1  | 0         | -                    |
+--------------------------+------+-----------+----------------------+
";
        assert_eq!(table(Machine::uniform(&[0, 1]), 2, 2, true), expected);
        let floating = table(Machine::uniform(&[0, 1]), 2, 1, false);
        let row = "| shard-0                  | 0-1  | 0         | on any of these CPUs ";
        assert!(floating.contains(row), "{floating}");
    }

    #[test]
    fn nodes_and_devices_have_rows() {
        let expected = "\
+--------------------------+-------------+-----------+---------------------------+
| Thread or Device         | CPUs        | NUMA Node | Description               |
+--------------------------+-------------+-----------+---------------------------+
| shard-0 to shard-15      | 0-7,16-23   | 0         | a CPU each, in order      |
| shard-16 to shard-17     | 8-9         | 1         | a CPU each, in order      |
| cores                    | 10-15,24-31 | 1         | -                         |
| watchdog, offload, timer | 0-31        | 0-1       | -                         |
| node 0                   | 0-7,16-23   | 0         | 125 GiB                   |
| node 1                   | 8-15,24-31  | 1         | 125 GiB                   |
| eno1                     | 0-7,16-23   | 0         | network interface         |
| GPU 1                    | 10-15,24-31 | 1         | NVIDIA H200, 0000:af:00.0 |
+--------------------------+-------------+-----------+---------------------------+
";
        let recorded = RecordedMachine::new(TWO_SOCKETS);
        assert_eq!(table(recorded.read(&[]), 32, 18, true), expected);
    }

    #[test]
    fn interfaces_have_a_bound() {
        let line = |number: usize| {
            let folder = format!("sys/class/net/eth{number:02}");
            format!("{folder}/operstate: up\n{folder}/device/uevent: x\n")
        };
        let text: String = (0..20).map(line).collect();
        let seen = table(RecordedMachine::new(&text).read(&[0, 1]), 2, 1, true);
        assert!(
            seen.contains("| eth15 ") && !seen.contains("| eth16 "),
            "{seen}"
        );
        assert!(seen.contains("| 4 more "), "{seen}");
    }
}
