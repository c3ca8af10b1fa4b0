//! CPUs: how many there are to use, how fast they are, and how fast they wake.

use conch_net::affinity;

use crate::finding::{Finding, FindingState};
use crate::host_facts::HostFacts;

pub(crate) fn examine(host: &HostFacts) -> Vec<Finding> {
    let mut findings = vec![granted(host)];
    findings.extend(quota(host));
    findings.extend(governor(host));
    findings.extend(sleep_states(host));
    findings.push(threads_of_cores(host));
    findings.extend(nodes(host));
    findings
}

/// Fewer leave no CPU to cores while all shards are busy.
const CPUS_WISHED: usize = 2;

fn granted(host: &HostFacts) -> Finding {
    let topology = &host.topology;
    let online = host.machine().cpus.len();
    let list = affinity::list_text(&topology.cpus);
    let seen = format!("{} of {online} (CPUs {list})", topology.cpus.len());
    match topology.cpus.len() < CPUS_WISHED && online >= CPUS_WISHED {
        true => Finding::advise(
            FindingState::Note,
            "CPUs",
            seen,
            "network threads and models share one CPU. Allow more: CPUAffinity= of systemd, \
             taskset, --cpuset-cpus of a container.",
        ),
        false => Finding::ok("CPUs", seen),
    }
}

/// A quota stops all threads until the next period once it is used up, which the tail shows.
fn quota(host: &HostFacts) -> Option<Finding> {
    let topology = &host.topology;
    let narrowest = host
        .control_group_values("cpu.max")
        .iter()
        .filter_map(|text| affinity::parse_quota(text))
        .min_by(f64::total_cmp);
    let Some(cpus) = narrowest else {
        return host
            .control_group()
            .map(|_| Finding::ok("CPU quota", "none"));
    };
    let stopped = stopped_periods(host);
    let mut seen = format!("{cpus:.1} CPUs' time for {} CPUs", topology.cpus.len());
    if let Some((stopped, all)) = stopped {
        seen.push_str(&format!(", used up in {stopped} of {all} periods so far"));
    }
    Some(Finding::advise(
        FindingState::Warning,
        "CPU quota",
        seen,
        "once it is used up every thread stands still until its period ends, up to 100 ms, and \
         requests with it. Give whole CPUs (--cpuset-cpus, AllowedCPUs=, the static CPU manager of \
         Kubernetes) and no quota, or leave room above what the load needs.",
    ))
}

/// Of the own control group: periods in which the quota was used up, and all.
fn stopped_periods(host: &HostFacts) -> Option<(u64, u64)> {
    let folder = host.control_group()?;
    let text = host.files().text(&format!("{folder}/cpu.stat"))?;
    let value = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value?.trim().parse::<u64>().ok()
    };
    let (all, stopped) = (value("nr_periods")?, value("nr_throttled")?);
    (all > 0).then_some((stopped, all))
}

fn governor(host: &HostFacts) -> Option<Finding> {
    let files = host.files();
    let of_cpu = |cpu: &usize| {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        Some((*cpu, files.text(&file)?))
    };
    let known: Vec<(usize, String)> = host.topology.cpus.iter().filter_map(of_cpu).collect();
    let (_, first) = known.first()?;
    let slow: Vec<usize> = known
        .iter()
        .filter(|(_, governor)| governor != "performance")
        .map(|(cpu, _)| *cpu)
        .collect();
    if slow.is_empty() {
        return Some(Finding::ok("CPU frequency", format!("governor {first}")));
    }
    let name = known.iter().find(|(cpu, _)| slow.contains(cpu));
    let name = name.map_or("unknown", |(_, governor)| governor.as_str());
    Some(Finding::advise(
        FindingState::Warning,
        "CPU frequency",
        format!("governor {name} on CPUs {}", affinity::list_text(&slow)),
        "a CPU that was idle is slow for its first milliseconds, and so is a request after a \
         pause. cpupower frequency-set -g performance, or tuned-adm profile latency-performance.",
    ))
}

/// A CPU that takes longer than this to wake shows in the latency of small requests.
const WAKE_US_MAX: usize = 20;

fn sleep_states(host: &HostFacts) -> Option<Finding> {
    let files = host.files();
    let cpu = host.topology.cpus.first()?;
    let folder = format!("sys/devices/system/cpu/cpu{cpu}/cpuidle");
    let state = |name: String| {
        let in_state = |file: &str| format!("{folder}/{name}/{file}");
        let is_used = files.number(&in_state("disable")).unwrap_or(0) == 0;
        let latency_us = files.number(&in_state("latency"))?;
        is_used.then(|| {
            (
                latency_us,
                files.text(&in_state("name")).unwrap_or_default(),
            )
        })
    };
    let names = files.names(&folder);
    let (latency_us, name) = names.into_iter().filter_map(state).max()?;
    let seen = format!("the deepest is {name}, left within {latency_us} us");
    Some(match latency_us > WAKE_US_MAX {
        true => Finding::advise(
            FindingState::Note,
            "CPU sleep states",
            seen,
            "an idle CPU takes that long to begin with a request. Where that matters: cpupower \
             idle-set -D 20, or tuned-adm profile latency-performance (it costs power).",
        ),
        false => Finding::ok("CPU sleep states", seen),
    })
}

fn threads_of_cores(host: &HostFacts) -> Finding {
    let usable = &host.topology.cpus;
    let shares_core = |cpu: &&usize| {
        let siblings = host.machine().cpu(**cpu).map(|cpu| &*cpu.siblings);
        let mut others = siblings.into_iter().flatten();
        others.any(|other| other != *cpu && usable.contains(other))
    };
    match usable.iter().filter(shares_core).count() {
        0 => Finding::ok("SMT", "no two of the CPUs are threads of one core"),
        count => Finding::advise(
            FindingState::Note,
            "SMT",
            format!(
                "{count} of {} CPUs share their core with another",
                usable.len()
            ),
            "two busy threads of a core slow each other down. Network threads take whole cores \
             first; for the flattest tail leave the second threads out (taskset), or boot with \
             nosmt.",
        ),
    }
}

fn nodes(host: &HostFacts) -> Option<Finding> {
    let machine = host.machine();
    let usable = machine.nodes_of(&host.topology.cpus);
    if machine.nodes.len() < 2 || usable.len() < 2 {
        return None;
    }
    Some(Finding::advise(
        FindingState::Note,
        "NUMA nodes",
        format!("the CPUs are of nodes {}", affinity::list_text(&usable)),
        "network threads take the CPUs next to the network interfaces that are up, and the threads \
         of a GPU those next to it. Where one node is enough, one server per node keeps memory \
         near: numactl --cpunodebind=0 --membind=0.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RecordedHost, about};
    use conch_net::machine::testing::{TWO_SOCKETS, WORKSTATION};

    #[test]
    fn a_quota_is_told_with_how_often_it_was_used_up() {
        let text = "proc/self/cgroup: 0::/a/b\nsys/fs/cgroup/a/b/cpu.max: max 100000\n\
                    sys/fs/cgroup/a/cpu.max: 150000 100000\n\
                    sys/fs/cgroup/a/b/cpu.stat: usage_usec 9\\nnr_periods 40\\nnr_throttled 3\n";
        let finding = quota(&RecordedHost::new(text, 4).limited(Some(1.5))).unwrap();
        assert_eq!(finding.state, FindingState::Warning);
        let expected = "1.5 CPUs' time for 4 CPUs, used up in 3 of 40 periods so far";
        assert_eq!(finding.seen, expected);
        let text = "proc/self/cgroup: 0::/a\nsys/fs/cgroup/a/cpu.max: max 100000\n";
        let finding = quota(&RecordedHost::new(text, 4).host()).unwrap();
        assert_eq!(finding.state, FindingState::Ok);
        assert_eq!(quota(&RecordedHost::new("", 4).host()), None);
    }

    #[test]
    fn governors_that_save_power_are_told_with_their_cpus() {
        let of = |cpu, name| {
            format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor: {name}\n")
        };
        for (governors, state, seen) in [
            (
                ["performance", "performance"],
                FindingState::Ok,
                "governor performance",
            ),
            (
                ["performance", "powersave"],
                FindingState::Warning,
                "governor powersave on CPUs 1",
            ),
            (
                ["schedutil", "schedutil"],
                FindingState::Warning,
                "governor schedutil on CPUs 0-1",
            ),
        ] {
            let text = of(0, governors[0]) + &of(1, governors[1]);
            let finding = governor(&RecordedHost::new(&text, 2).host()).unwrap();
            assert_eq!((finding.state, finding.seen.as_str()), (state, seen));
        }
        assert_eq!(governor(&RecordedHost::new("", 2).host()), None);
    }

    #[test]
    fn the_deepest_sleep_that_is_allowed_counts() {
        let folder = "sys/devices/system/cpu/cpu0/cpuidle";
        let text = format!(
            "{folder}/state0/latency: 0\n{folder}/state0/name: POLL\n{folder}/state1/latency: 2\n\
             {folder}/state1/name: C1\n{folder}/state2/latency: 133\n{folder}/state2/name: C6\n"
        );
        let finding = sleep_states(&RecordedHost::new(&text, 2).host()).unwrap();
        assert_eq!(finding.state, FindingState::Note);
        assert_eq!(finding.seen, "the deepest is C6, left within 133 us");
        let text = format!("{text}{folder}/state2/disable: 1\n");
        let finding = sleep_states(&RecordedHost::new(&text, 2).host()).unwrap();
        assert_eq!(finding.state, FindingState::Ok);
    }

    #[test]
    fn cores_and_nodes_are_told_where_there_are_several() {
        let findings = examine(&RecordedHost::new(TWO_SOCKETS, 32).host());
        let seen = "32 of 32 CPUs share their core with another";
        assert_eq!(about(&findings, "SMT").seen, seen);
        assert_eq!(
            about(&findings, "NUMA nodes").seen,
            "the CPUs are of nodes 0-1"
        );
        let findings = examine(&RecordedHost::new(WORKSTATION, 8).host());
        assert_eq!(about(&findings, "SMT").state, FindingState::Ok);
        assert!(
            !findings
                .iter()
                .any(|finding| finding.subject == "NUMA nodes")
        );
        assert_eq!(about(&findings, "CPUs").state, FindingState::Ok);
        let findings = examine(&RecordedHost::new(WORKSTATION, 1).host());
        assert_eq!(about(&findings, "CPUs").state, FindingState::Note);
    }
}
