//! Recorded machines read back, and what is missing or malformed.

use super::files::{ENTRIES_MAX, parse_list};
use super::testing::{CONTAINER, EIGHT_GPUS, RecordedMachine, TWO_SOCKETS, WORKSTATION};
use super::*;
use crate::affinity::list_text;

/// CPUs of each node, first core's threads, and interfaces with their CPUs.
fn seen(machine: &Machine) -> (Vec<String>, String, Vec<String>) {
    let nodes = machine.nodes.iter();
    let interface = |interface: &NetworkInterface| {
        let state = if interface.is_up { "up" } else { "down" };
        let (node, cpus) = (interface.locality.node, &interface.locality.cpus);
        format!("{} {state} {node:?} {}", interface.name, list_text(cpus))
    };
    (
        nodes.map(|node| list_text(&node.cpus)).collect(),
        list_text(&machine.cpus[0].siblings),
        machine.interfaces.iter().map(interface).collect(),
    )
}

#[test]
fn reads_recorded_machines() {
    for (text, cpu_count, nodes, siblings, interfaces) in [
        (
            WORKSTATION,
            16,
            &["0-15"][..],
            "0,8",
            &["enp5s0 up None 0-15", "wlp6s0 down None 0-15"][..],
        ),
        (
            TWO_SOCKETS,
            32,
            &["0-7,16-23", "8-15,24-31"],
            "0,16",
            &["eno1 up Some(0) 0-7,16-23", "eno2 down Some(0) 0-7,16-23"],
        ),
        (
            EIGHT_GPUS,
            224,
            &["0-55,112-167", "56-111,168-223"],
            "0,112",
            &[
                "ens2f0np0 up Some(0) 0-55,112-167",
                "ens2f1np1 down Some(0) 0-55,112-167",
                "ens6f0np0 up Some(1) 56-111,168-223",
            ],
        ),
        (CONTAINER, 64, &["0-63"], "0", &[]),
    ] {
        let machine = RecordedMachine::new(text).read(&[0, 1]);
        assert_eq!(machine.cpus.len(), cpu_count);
        let (seen_nodes, seen_siblings, seen_interfaces) = seen(&machine);
        assert_eq!(seen_nodes, nodes);
        assert_eq!(seen_siblings, siblings);
        assert_eq!(seen_interfaces, interfaces);
    }
    let machine = RecordedMachine::new(TWO_SOCKETS).read(&[]);
    assert_eq!(machine.nodes[1].memory_bytes, Some(132_088_484 << 10));
    assert_eq!(machine.nodes[1].distances, [21, 10]);
    assert_eq!(machine.nodes_of(&[31, 0, 99]), [0, 1]);
    assert_eq!(machine.cpu(31).unwrap().node, Some(1));
    assert_eq!(machine.cpu(32), None);
}

#[test]
fn finds_pci_devices_by_any_spelling() {
    let recorded = RecordedMachine::new(EIGHT_GPUS);
    let machine = recorded.read(&[]);
    for (address, node, cpus) in [
        ("0000:1b:00.0", Some(0), "0-13,112-125"),
        ("00000000:DF:00.0", Some(1), "98-111,210-223"),
        ("0000:02:00.0", None, ""),
        ("../../../class/net/ens2f0np0/device", None, ""),
        ("1b:00.0", None, ""),
        ("", None, ""),
    ] {
        let locality = machine.pci_locality(address);
        assert_eq!(locality.node, node, "{address}");
        assert_eq!(list_text(&locality.cpus), cpus, "{address}");
    }
    let unknown = Machine::uniform(&[3, 5]).pci_locality("0000:1b:00.0");
    assert_eq!(unknown, PciLocality::default());
}

#[test]
fn what_is_missing_or_malformed_is_unknown() {
    let nothing = RecordedMachine::new("").read(&[2, 4]);
    let uniform = Machine::uniform(&[2, 4]);
    assert_eq!(
        (&nothing.cpus, &nothing.nodes),
        (&uniform.cpus, &uniform.nodes)
    );
    assert_eq!(uniform.nodes_of(&[4]), [0]);
    let long = "1,".repeat(40_000);
    let text = format!(
        "sys/devices/system/cpu/online: 0-x\n\
         sys/devices/system/cpu/cpu2/topology/thread_siblings_list: 0-1\n\
         sys/devices/system/node/node0/cpulist: 2\n\
         sys/devices/system/node/node0/meminfo: Node 0 MemTotal: many kB\n\
         sys/devices/system/node/node0/distance: near far\n\
         sys/devices/system/node/node1/cpulist: {long}\n\
         sys/devices/system/node/nodes/cpulist: 4\n\
         sys/class/net/eth0/device/uevent: DRIVER=virtio_net\n\
         sys/class/net/eth1/device/numa_node: 0\n\
         sys/bus/pci/devices/0000:01:00.0/numa_node: 7\n"
    );
    let recorded = RecordedMachine::new(&text);
    let machine = recorded.read(&[2, 4]);
    let node = NumaNode {
        id: 0,
        cpus: vec![2],
        memory_bytes: None,
        distances: Vec::new(),
    };
    assert_eq!(machine.nodes, [node]);
    let (_, siblings, interfaces) = seen(&machine);
    assert_eq!(siblings, "2");
    assert_eq!(interfaces, ["eth0 down None ", "eth1 down Some(0) 2"]);
    assert_eq!(machine.cpu(4).unwrap().node, None);
    assert_eq!(machine.pci_locality("0000:01:00.0"), PciLocality::default());
}

#[test]
fn folders_have_a_bound() {
    let line = |number: usize| format!("sys/class/net/e{number}/device/uevent: x\n");
    let text: String = (0..ENTRIES_MAX + 10).map(line).collect();
    let machine = RecordedMachine::new(&text).read(&[0]);
    assert_eq!(machine.interfaces.len(), ENTRIES_MAX);
}

#[test]
fn parses_lists() {
    for (text, expected) in [
        ("", Some(vec![])),
        ("0-2,5\n", Some(vec![0, 1, 2, 5])),
        ("5,0-1,1", Some(vec![0, 1, 5])),
        ("2-1", None),
        ("0-1023", Some((0..1_024).collect())),
        ("0-1024", None),
        ("0-", None),
        ("-1", None),
    ] {
        assert_eq!(parse_list(text), expected, "{text:?}");
    }
}
