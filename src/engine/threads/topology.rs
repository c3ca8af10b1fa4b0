//! CPUs of the machine, and which of them are the shards'.
//!
//! Shards are pinned one to a CPU. Where cores run is in `placement.rs`.

use std::path::Path;

use conch_net::affinity;
use conch_net::machine::Machine;

/// More shards than this rarely help; who has the traffic asks for them.
const SHARDS_MAX: usize = 8;

/// The CPUs that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The affinity mask, ascending, never empty.
    pub cpus: Vec<usize>,
    /// How many CPUs' worth of time there is: the mask's, or less by the cgroup's quota. At least
    /// 1.
    pub cpu_count: usize,
    /// What these CPUs are part of.
    pub machine: Machine,
}

impl Topology {
    /// Reads the machine, the calling thread's affinity mask and the process' cgroup quota.
    pub fn detect() -> Topology {
        // A system that does not tell is treated as one CPU: correct everywhere, if slow.
        let cpus = affinity::current_cpus().unwrap_or_else(|_| vec![0]);
        let machine = Machine::read(Path::new("/"), &cpus);
        Topology::new(machine, cpus, affinity::quota_cpus())
    }

    /// What a process has that may use `cpus` of `machine`, of whose time its cgroup grants
    /// `quota_cpus` CPUs' worth.
    pub fn new(machine: Machine, cpus: Vec<usize>, quota_cpus: Option<f64>) -> Topology {
        let granted = match quota_cpus {
            // A quota of 1.5 CPUs keeps two threads busy most of the time. Above the mask it does
            // not bind.
            Some(quota) if quota.ceil() < cpus.len() as f64 => (1..cpus.len())
                .find(|count| *count as f64 >= quota)
                .unwrap_or(cpus.len()),
            _ => cpus.len(),
        };
        Topology {
            cpu_count: granted.max(1),
            cpus,
            machine,
        }
    }

    /// The CPUs of the network shards: `requested` many, or one per CPU granted up to a maximum.
    /// Those next to network interfaces with a link come first. Of each group the first thread of
    /// each core comes before its siblings: two shards on one core would slow each other down.
    pub fn shard_cpus(&self, requested: Option<usize>) -> Vec<usize> {
        let count = requested.unwrap_or(self.cpu_count.min(SHARDS_MAX)).max(1);
        let interfaces = self.machine.interfaces.iter();
        let near: Vec<usize> = interfaces
            .filter(|interface| interface.is_up)
            .flat_map(|interface| interface.locality.cpus.iter().copied())
            .collect();
        let mut cpus = self.cpus.clone();
        // Stable: what is alike stays in ascending order, as does everything on a machine that
        // tells nothing.
        cpus.sort_by_cached_key(|cpu| (!near.contains(cpu), self.is_later_thread(*cpu)));
        cpus.into_iter().cycle().take(count).collect()
    }

    /// Whether this process may use a thread of the same core with a lower number.
    fn is_later_thread(&self, cpu: usize) -> bool {
        let siblings = self.machine.cpu(cpu).map(|cpu| &*cpu.siblings);
        let mut earlier = siblings.into_iter().flatten().filter(|other| **other < cpu);
        earlier.any(|other| self.cpus.contains(other))
    }
}

#[cfg(test)]
mod tests {
    use conch_net::machine::testing::{
        CONTAINER, EIGHT_GPUS, RecordedMachine, TWO_SOCKETS, WORKSTATION,
    };

    use super::*;

    fn uniform(cpus: Vec<usize>, quota: Option<f64>) -> Topology {
        Topology::new(Machine::uniform(&cpus), cpus, quota)
    }

    #[test]
    fn quota_and_mask_bound_the_count() {
        for (cpus, quota, expected) in [
            (1, None, 1),
            (4, None, 4),
            (4, Some(0.5), 1),
            (4, Some(1.0), 1),
            (4, Some(1.5), 2),
            (4, Some(3.2), 4),
            (4, Some(16.0), 4),
            (64, Some(12.0), 12),
        ] {
            let topology = uniform((0..cpus).collect(), quota);
            assert_eq!(topology.cpu_count, expected, "{cpus} CPUs, quota {quota:?}");
        }
    }

    #[test]
    fn shards_take_the_first_cpus_and_share_if_there_are_too_few() {
        let topology = uniform(vec![2, 5, 7], None);
        assert_eq!(topology.shard_cpus(None), [2, 5, 7]);
        assert_eq!(topology.shard_cpus(Some(2)), [2, 5]);
        assert_eq!(topology.shard_cpus(Some(5)), [2, 5, 7, 2, 5]);
        assert_eq!(topology.shard_cpus(Some(0)), [2]);
        let many = uniform((0..64).collect(), None);
        assert_eq!(many.shard_cpus(None), (0..SHARDS_MAX).collect::<Vec<_>>());
    }

    #[test]
    fn interfaces_without_a_link_count_for_nothing() {
        let text = EIGHT_GPUS.replace("ens2f0np0/operstate: up", "ens2f0np0/operstate: down");
        let machine = RecordedMachine::new(&text).read(&[]);
        let topology = Topology::new(machine, (0..224).collect(), None);
        assert_eq!(affinity::list_text(&topology.shard_cpus(None)), "56-63");
    }

    #[test]
    fn shards_take_cpus_next_to_the_network_and_whole_cores_first() {
        // Machine, mask, shards requested, their CPUs in order.
        for (text, mask, requested, expected) in [
            (WORKSTATION, 0..16, None, "0-7"),
            (WORKSTATION, 0..16, Some(10), "0-9"),
            // Threads whose siblings the mask excludes are as good as any.
            (WORKSTATION, 4..12, Some(8), "4-11"),
            (WORKSTATION, 4..16, Some(9), "4-12"),
            (TWO_SOCKETS, 0..32, None, "0-7"),
            (TWO_SOCKETS, 0..32, Some(10), "0-7,16-17"),
            (TWO_SOCKETS, 4..28, Some(12), "4-7,16-23"),
            (TWO_SOCKETS, 8..16, Some(4), "8-11"),
            (TWO_SOCKETS, 6..10, None, "6-9"),
            (EIGHT_GPUS, 0..224, None, "0-7"),
            (EIGHT_GPUS, 100..120, Some(14), "100-113"),
            (CONTAINER, 0..64, None, "0-7"),
            (CONTAINER, 30..33, None, "30-32"),
        ] {
            let mask: Vec<usize> = mask.collect();
            let machine = RecordedMachine::new(text).read(&mask);
            let seen = Topology::new(machine, mask.clone(), None).shard_cpus(requested);
            let seen = affinity::list_text(&seen);
            assert_eq!(seen, expected, "{mask:?}, {requested:?}");
        }
    }
}
