//! CPUs of the machine, and their assignment to shards and cores.
//!
//! Shards are pinned one to a CPU; cores get a SET, because a backend's thread pools and child
//! processes inherit it.

use std::sync::Arc;

use conch_net::affinity;

use crate::HostPolicies;
use crate::threads::timer_thread::TimerThread;

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
}

impl Topology {
    /// Reads the calling thread's affinity mask and the process' cgroup quota.
    pub fn detect() -> Topology {
        // A system that does not tell is treated as one CPU: correct everywhere, if slow.
        let cpus = affinity::current_cpus().unwrap_or_else(|_| vec![0]);
        Topology::new(cpus, affinity::quota_cpus())
    }

    fn new(cpus: Vec<usize>, quota_cpus: Option<f64>) -> Topology {
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
        }
    }

    /// The CPUs of the network shards: `requested` many, or one per CPU granted up to a maximum.
    pub fn shard_cpus(&self, requested: Option<usize>) -> Vec<usize> {
        let count = requested.unwrap_or(self.cpu_count.min(SHARDS_MAX)).max(1);
        self.cpus.iter().copied().cycle().take(count).collect()
    }
}

/// Where and how readily cores run.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The affinity set of core threads.
    pub cpus: Vec<usize>,
    /// Whether core threads give way (nice +5) to shards, with which they share CPUs.
    pub gives_way: bool,
    /// Whether an idle core may spin for a moment: only off the shards' CPUs.
    pub spins: bool,
    /// Watches deadlines while every core executes.
    pub timer_thread: Arc<TimerThread>,
    /// Where instances of single policies run instead.
    pub host_policies: Arc<HostPolicies>,
}

impl Placement {
    /// Cores get the CPUs that `shard_cpus` leave, if those are at least two, else all.
    /// `lowers_priority` allows cores that share CPUs with shards to give way.
    pub fn new(
        topology: &Topology,
        shard_cpus: &[usize],
        lowers_priority: bool,
        timer_thread: Arc<TimerThread>,
    ) -> Placement {
        let apart: Vec<usize> = topology
            .cpus
            .iter()
            .copied()
            .filter(|cpu| !shard_cpus.contains(cpu))
            .collect();
        // A quota below the mask makes spinning a waste of granted time, wherever it happens.
        let is_unbound = topology.cpu_count == topology.cpus.len();
        let is_apart = shard_cpus.is_empty() || apart.len() >= 2;
        Placement {
            cpus: if is_apart {
                apart
            } else {
                topology.cpus.clone()
            },
            gives_way: !is_apart && lowers_priority,
            spins: is_apart && is_unbound && !shard_cpus.is_empty(),
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

    /// Applies this to the calling thread. What the system refuses (a container may) is left as it
    /// is.
    pub(crate) fn apply(&self) {
        if let Err(error) = affinity::confine_current_thread(&self.cpus) {
            conch_log::warning!("cannot confine a core to CPUs {:?}: {error}", self.cpus);
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

/// What the timer interrupt itself costs; asking for less gains nothing.
const TIMER_SLACK_NS: u64 = 1_000;

/// Shorter than any that the system gives by itself (0.7 ms and more), so that a core that wakes up
/// takes the CPU from whatever is not in a hurry: loads, other processes. Longer than a shard's,
/// which takes it from a core.
const TURN_NS: u64 = 500_000;

/// A computing core at +5 gets about a third of a shard's share when both want one CPU (weights 335
/// and 1024).
const NICE: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

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
            let topology = Topology::new((0..cpus).collect(), quota);
            assert_eq!(topology.cpu_count, expected, "{cpus} CPUs, quota {quota:?}");
        }
    }

    #[test]
    fn shards_take_the_first_cpus_and_share_if_there_are_too_few() {
        let topology = Topology::new(vec![2, 5, 7], None);
        assert_eq!(topology.shard_cpus(None), [2, 5, 7]);
        assert_eq!(topology.shard_cpus(Some(2)), [2, 5]);
        assert_eq!(topology.shard_cpus(Some(5)), [2, 5, 7, 2, 5]);
        assert_eq!(topology.shard_cpus(Some(0)), [2]);
        assert_eq!(
            Topology::new((0..64).collect(), None)
                .shard_cpus(None)
                .len(),
            SHARDS_MAX
        );
    }

    #[test]
    fn cores_keep_off_the_shards_where_two_cpus_remain() {
        let timer_thread = Arc::new(TimerThread::default());
        // CPUs, shards, expected set, gives way, spins
        for (cpus, shards, expected, gives_way, spins) in [
            (1, 1, vec![0], true, false),
            (2, 1, vec![0, 1], true, false),
            (2, 2, vec![0, 1], true, false),
            (4, 2, vec![2, 3], false, true),
            (4, 3, vec![0, 1, 2, 3], true, false),
            (4, 0, vec![0, 1, 2, 3], false, false),
        ] {
            let topology = Topology::new((0..cpus).collect(), None);
            let shard_cpus: Vec<usize> = (0..shards).collect();
            let placement = Placement::new(&topology, &shard_cpus, true, Arc::clone(&timer_thread));
            assert_eq!(placement.cpus, expected, "{cpus} CPUs, {shards} shards");
            assert_eq!(
                (placement.gives_way, placement.spins),
                (gives_way, spins),
                "{cpus} CPUs, {shards} shards"
            );
            assert!(
                !Placement::new(&topology, &shard_cpus, false, Arc::clone(&timer_thread)).gives_way
            );
        }
    }
}
