//! Where the threads of cores run, and in which node's memory.
//!
//! Cores get a SET of CPUs, because a backend's thread pools and child processes inherit it. Those
//! of a GPU get the CPUs next to it. Nothing differs on a machine without GPUs.

use std::sync::Arc;

use conch_config::InstanceKind;
use conch_net::affinity;

use crate::HostPolicies;
use crate::threads::loader_placement::{LoaderPlacement, NICE};
use crate::threads::timer_thread::TimerThread;
use crate::threads::topology::Topology;

/// A GPU, as whoever found it knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// Its number in configurations (`gpus: [ 0 ]`).
    pub device_id: i32,
    /// Of its product.
    pub name: String,
    /// In any spelling: `0000:3b:00.0`, `00000000:3B:00.0`.
    pub pci_address: String,
}

/// Where and how readily the threads of some cores run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorePlacement {
    /// Their affinity set.
    pub cpus: Vec<usize>,
    /// Whose memory they take first; none: that of whichever CPU they run on.
    pub memory_node: Option<usize>,
    /// Whether they give way (nice +5) to shards, with which they share CPUs.
    pub gives_way: bool,
    /// Whether they may spin for a moment when idle: only off the shards' CPUs.
    pub spins: bool,
}

/// Where cores run, by what they execute on.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Of all that have no GPU.
    pub default: CorePlacement,
    /// Of each GPU.
    pub gpus: Arc<[(GpuPlace, CorePlacement)]>,
    /// Of threads that change models.
    pub loader: LoaderPlacement,
    /// Watches deadlines while every core executes.
    pub timer_thread: Arc<TimerThread>,
    /// Where instances of single policies run instead.
    pub host_policies: Arc<HostPolicies>,
}

impl Placement {
    /// Cores get the CPUs that `shard_cpus` leave, if those are at least two, else all; cores of a
    /// GPU in the same way those next to it. `lowers_priority` allows cores that share CPUs with
    /// shards to give way.
    pub fn new(
        topology: &Topology,
        shard_cpus: &[usize],
        lowers_priority: bool,
        timer_thread: Arc<TimerThread>,
        gpus: &[GpuPlace],
    ) -> Placement {
        // A quota below the mask makes spinning a waste of granted time, wherever it happens.
        let is_unbound = topology.cpu_count == topology.cpus.len();
        let place = |cpus: &[usize], memory_node| {
            let apart: Vec<usize> = without(cpus, shard_cpus);
            let is_apart = shard_cpus.is_empty() || apart.len() >= 2;
            CorePlacement {
                cpus: if is_apart { apart } else { cpus.to_vec() },
                memory_node,
                gives_way: !is_apart && lowers_priority,
                spins: is_apart && is_unbound && !shard_cpus.is_empty(),
            }
        };
        let default = place(&topology.cpus, None);
        let at_gpu = |gpu: &GpuPlace| {
            let locality = topology.machine.pci_locality(&gpu.pci_address);
            let mut near = locality.cpus;
            near.retain(|cpu| topology.cpus.contains(cpu));
            // Unknown, or too few that this process may use: thread pools and child processes of a
            // backend inherit the set. Memory is best where they run, then.
            let placement = match near.len() < 2 {
                true => default.clone(),
                false => place(&near, locality.node),
            };
            (gpu.clone(), placement)
        };
        Placement {
            gpus: gpus.iter().map(at_gpu).collect(),
            loader: match shard_cpus.is_empty() {
                true => LoaderPlacement::default(),
                false => LoaderPlacement::beside_shards(&default.cpus, default.gives_way),
            },
            default,
            timer_thread,
            host_policies: Arc::default(),
        }
    }

    /// With policies for single instances.
    pub fn with_policies(self, host_policies: HostPolicies) -> Placement {
        Placement {
            host_policies: Arc::new(host_policies),
            ..self
        }
    }

    /// Where instances of this kind on this device run. A host policy that has settings is the
    /// operator's word on both CPUs and memory: nothing is preferred beside it.
    pub(crate) fn of(&self, kind: InstanceKind, device_id: i32, policy: &str) -> &CorePlacement {
        let is_set = self.host_policies.settings(policy).next().is_some();
        if kind != InstanceKind::Gpu || is_set {
            return &self.default;
        }
        let mut gpus = self.gpus.iter();
        let found = gpus.find(|(gpu, _)| gpu.device_id == device_id);
        found.map_or(&self.default, |(_, placement)| placement)
    }
}

impl CorePlacement {
    /// Applies this to the calling thread. What the system refuses (a container may) is left as it
    /// is.
    pub(crate) fn apply(&self) {
        if let Err(error) = affinity::confine_current_thread(&self.cpus) {
            conch_log::warning!("cannot confine a core to CPUs {:?}: {error}", self.cpus);
        }
        // Only a preference, which containers often forbid.
        if let Some(node) = self.memory_node
            && let Err(error) = affinity::prefer_memory_of_current_thread(node)
        {
            conch_log::verbose!(1, "cannot prefer memory of node {node} for a core: {error}");
        }
        // Queue delays are tens to hundreds of us; the system's default would add 50 to each.
        if let Err(error) = affinity::set_timer_slack_of_current_thread(TIMER_SLACK_NS) {
            conch_log::warning!("cannot sharpen the timers of a core: {error}");
        }
        if let Err(error) = affinity::shorten_turns_of_current_thread(TURN_NS) {
            conch_log::warning!("cannot shorten the turns of a core: {error}");
        }
        if self.gives_way
            && let Err(error) = affinity::lower_priority_of_current_thread(NICE)
        {
            conch_log::warning!("cannot lower the priority of a core: {error}");
        }
    }
}

fn without(cpus: &[usize], taken: &[usize]) -> Vec<usize> {
    let cpus = cpus.iter().copied();
    cpus.filter(|cpu| !taken.contains(cpu)).collect()
}

/// What the timer interrupt itself costs; asking for less gains nothing.
const TIMER_SLACK_NS: u64 = 1_000;

/// Shorter than any that the system gives by itself (0.7 ms and more), so that a core that wakes up
/// takes the CPU from whatever is not in a hurry: loads, other processes. Longer than a shard's,
/// which takes it from a core.
const TURN_NS: u64 = 500_000;

#[cfg(test)]
mod tests {
    use conch_net::machine::Machine;
    use conch_net::machine::testing::{
        CONTAINER, EIGHT_GPUS, RecordedMachine, TWO_SOCKETS, WORKSTATION,
    };

    use super::*;

    fn placed(topology: &Topology, shard_cpus: &[usize], gpus: &[GpuPlace]) -> Placement {
        let timer_thread = Arc::new(TimerThread::default());
        Placement::new(topology, shard_cpus, true, timer_thread, gpus)
    }

    fn gpus(addresses: &[&str]) -> Vec<GpuPlace> {
        let gpu = |(device_id, address): (i32, &&str)| GpuPlace {
            device_id,
            name: format!("Test GPU {device_id}"),
            pci_address: (*address).to_owned(),
        };
        (0..).zip(addresses).map(gpu).collect()
    }

    #[test]
    fn cores_keep_off_the_shards_where_two_cpus_remain() {
        // CPUs, shards, expected set, gives way, spins
        for (cpus, shards, expected, gives_way, spins) in [
            (1, 1, vec![0], true, false),
            (2, 1, vec![0, 1], true, false),
            (2, 2, vec![0, 1], true, false),
            (4, 2, vec![2, 3], false, true),
            (4, 3, vec![0, 1, 2, 3], true, false),
            (4, 0, vec![0, 1, 2, 3], false, false),
        ] {
            let cpus: Vec<usize> = (0..cpus).collect();
            let topology = Topology::new(Machine::uniform(&cpus), cpus, None);
            let shard_cpus: Vec<usize> = (0..shards).collect();
            let expected = CorePlacement {
                cpus: expected,
                memory_node: None,
                gives_way,
                spins,
            };
            let what = format!("{:?}, {shards} shards", topology.cpus);
            let placement = placed(&topology, &shard_cpus, &[]);
            assert_eq!(placement.default, expected, "{what}");
            assert!(placement.gpus.is_empty());
            assert_eq!(placement.loader.needs_own_threads(), shards > 0, "{what}");
            let timer_thread = Arc::new(TimerThread::default());
            let patient = Placement::new(&topology, &shard_cpus, false, timer_thread, &[]);
            assert!(!patient.default.gives_way, "{what}");
        }
    }

    /// Machine, mask, shards requested, addresses of GPUs; the set of other cores; set and node of
    /// each GPU.
    type Row<'a> = (
        &'a str,
        std::ops::Range<usize>,
        usize,
        &'a [&'a str],
        &'a str,
        &'a [(&'a str, Option<usize>)],
    );

    fn check((text, mask, shards, addresses, default, at_gpus): Row<'_>) {
        let what = format!("{mask:?}, {shards} shards, {addresses:?}");
        let recorded = RecordedMachine::new(text);
        let mask: Vec<usize> = mask.collect();
        let topology = Topology::new(recorded.read(&mask), mask, None);
        let shard_cpus = topology.shard_cpus(Some(shards));
        let placement = placed(&topology, &shard_cpus, &gpus(addresses));
        assert_eq!(
            affinity::list_text(&placement.default.cpus),
            default,
            "{what}"
        );
        let seen: Vec<(String, Option<usize>)> = (placement.gpus.iter())
            .map(|(_, at)| (affinity::list_text(&at.cpus), at.memory_node))
            .collect();
        let seen: Vec<(&str, Option<usize>)> =
            seen.iter().map(|(cpus, node)| (&**cpus, *node)).collect();
        assert_eq!(seen, at_gpus, "{what}");
        for (gpu, at) in &*placement.gpus {
            let shares = at.cpus.iter().any(|cpu| shard_cpus.contains(cpu));
            assert_eq!(
                (at.gives_way, at.spins),
                (shares, !shares),
                "{what}, {gpu:?}"
            );
        }
    }

    #[test]
    fn cores_of_a_gpu_run_next_to_it() {
        let one = &["0000:01:00.0"][..];
        let two = &["00000000:3B:00.0", "0000:AF:00.0"][..];
        for row in [
            // The firmware knows no node: the cores' set, of all CPUs.
            (WORKSTATION, 0..16, 8, one, "8-15", &[("8-15", None)][..]),
            (WORKSTATION, 0..16, 15, one, "0-15", &[("0-15", None)]),
            (
                TWO_SOCKETS,
                0..32,
                8,
                two,
                "8-31",
                &[("16-23", Some(0)), ("8-15,24-31", Some(1))],
            ),
            // Shards leave one CPU of the first node: its GPU shares with them.
            (
                TWO_SOCKETS,
                0..32,
                15,
                two,
                "8-15,23-31",
                &[("0-7,16-23", Some(0)), ("8-15,24-31", Some(1))],
            ),
            // The mask has the first node only: the other GPU's cores run where all do.
            (
                TWO_SOCKETS,
                0..8,
                2,
                two,
                "2-7",
                &[("2-7", Some(0)), ("2-7", None)],
            ),
            (CONTAINER, 0..64, 8, one, "8-63", &[("8-63", None)]),
            (
                CONTAINER,
                0..64,
                8,
                &["no address"],
                "8-63",
                &[("8-63", None)],
            ),
            (TWO_SOCKETS, 0..32, 8, &[], "8-31", &[]),
        ] {
            check(row);
        }
    }

    #[test]
    fn cores_of_eight_gpus_are_apart() {
        let four = &[
            "0000:1b:00.0",
            "0000:61:00.0",
            "0000:9d:00.0",
            "0000:df:00.0",
        ][..];
        for row in [
            (
                EIGHT_GPUS,
                0..224,
                8,
                four,
                "8-223",
                &[
                    ("8-13,112-125", Some(0)),
                    ("42-55,154-167", Some(0)),
                    ("56-69,168-181", Some(1)),
                    ("98-111,210-223", Some(1)),
                ][..],
            ),
            (
                EIGHT_GPUS,
                50..60,
                4,
                four,
                "54-59",
                &[
                    ("54-59", None),
                    ("54-55", Some(0)),
                    ("56-59", Some(1)),
                    ("54-59", None),
                ],
            ),
            // A single CPU is no set.
            (
                EIGHT_GPUS,
                13..20,
                2,
                &four[..1],
                "15-19",
                &[("15-19", None)],
            ),
        ] {
            check(row);
        }
    }

    #[test]
    fn instances_go_to_their_gpu_unless_a_policy_says_where() {
        let recorded = RecordedMachine::new(TWO_SOCKETS);
        let topology = Topology::new(recorded.read(&[]), (0..32).collect(), None);
        let mut policies = HostPolicies::default();
        policies.set("gpu_1", "numa-node", "0").unwrap();
        policies.set("own", "cpu-cores", "3-3").unwrap();
        let placement = placed(&topology, &[0, 1], &gpus(&["0000:3b:00.0", "0000:af:00.0"]))
            .with_policies(policies);
        let at = |place: usize| &placement.gpus[place].1;
        for (kind, device_id, policy, expected) in [
            (InstanceKind::Cpu, 0, "cpu", &placement.default),
            (InstanceKind::Model, 0, "model", &placement.default),
            (InstanceKind::Gpu, 0, "gpu_0", at(0)),
            (InstanceKind::Gpu, 1, "gpu_1", &placement.default),
            (InstanceKind::Gpu, 1, "without settings", at(1)),
            (InstanceKind::Gpu, 1, "own", &placement.default),
            (InstanceKind::Gpu, 7, "gpu_7", &placement.default),
        ] {
            let seen = placement.of(kind, device_id, policy);
            assert_eq!(seen, expected, "{kind:?} {device_id} {policy}");
        }
        assert_eq!(at(1).memory_node, Some(1));
    }

    #[test]
    fn a_thread_gets_its_place() {
        let first = affinity::current_cpus().unwrap()[0];
        let topology = Topology::new(Machine::uniform(&[first]), vec![first], None);
        // No machine has that node: the preference is lost, the rest holds.
        let at = CorePlacement {
            memory_node: Some(1_000),
            ..placed(&topology, &[], &[]).default
        };
        std::thread::spawn(move || {
            at.apply();
            assert_eq!(affinity::current_cpus().unwrap(), [first]);
        })
        .join()
        .unwrap();
    }
}
