//! How many threads an engine gets for an instance.
//!
//! The server gives the thread that executes an instance a set of CPUs, by its host policy or its
//! device, and the threads that an engine starts on that thread inherit it. An engine that counts
//! the CPUs of the machine instead would start more threads than may run, and several instances
//! that each count all would contend for every CPU. So backends size an engine's pools by
//! [`share_of_cpus`], asked on the instance's own thread.

use std::thread;

use serde_json::Value;

use crate::config::integer;
use crate::{InstanceContext, ModelConfig};

/// CPUs for each of the instances that share those of the calling thread: its CPU set (and quota)
/// divided by the instances of the model under the same host policy, at least 1. To be called where
/// an instance is initialised, which is on the thread that executes it.
pub fn share_of_cpus(config: &ModelConfig, context: &InstanceContext) -> usize {
    let cpu_count = thread::available_parallelism().map_or(1, usize::from);
    share(cpu_count, neighbours(config, &context.host_policy))
}

/// Each one's part of so many CPUs, at least 1.
fn share(cpu_count: usize, instance_count: u64) -> usize {
    let instance_count = usize::try_from(instance_count).unwrap_or(usize::MAX).max(1);
    (cpu_count / instance_count).max(1)
}

/// Instances of the model under a host policy (`{"<name>": {…}}`), of which the one that has it is
/// one.
fn neighbours(config: &ModelConfig, host_policy: &Value) -> u64 {
    let policy = host_policy
        .as_object()
        .and_then(|policies| policies.keys().next());
    let groups = config
        .json()
        .get("instance_group")
        .and_then(Value::as_array);
    let (Some(policy), Some(groups)) = (policy, groups) else {
        return config.instance_count();
    };
    let counts = groups.iter().map(|group| count_under(group, policy));
    let counted = counts.fold(0, u64::saturating_add);
    // A server that names policies otherwise.
    if counted == 0 {
        return config.instance_count();
    }
    counted
}

/// Instances of a group that run under a policy: named, or else by their kind and device.
fn count_under(group: &Value, policy: &str) -> u64 {
    let text = |key| group.get(key).and_then(Value::as_str).unwrap_or_default();
    let count = group.get("count").and_then(integer).unwrap_or(1);
    let count = u64::try_from(count).unwrap_or(1);
    let gpus = group.get("gpus").and_then(Value::as_array);
    let gpus = gpus.map(Vec::as_slice).unwrap_or_default();
    let copies = match (text("host_policy"), text("kind")) {
        ("", "KIND_GPU") => {
            let on_it = |gpu: &&Value| policy == format!("gpu_{gpu}");
            gpus.iter().filter(on_it).count()
        }
        ("", "KIND_MODEL") => usize::from(policy == "model"),
        ("", _) => usize::from(policy == "cpu"),
        (named, "KIND_GPU") if named == policy => gpus.len(),
        (named, _) => usize::from(named == policy),
    };
    count.saturating_mul(copies as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn divides_cpus_among_instances() {
        for (cpus, instances, expected) in [(8, 1, 8), (8, 3, 2), (2, 8, 1), (4, 0, 4), (1, 1, 1)] {
            assert_eq!(share(cpus, instances), expected, "{cpus}/{instances}");
        }
    }

    #[test]
    fn counts_the_instances_under_a_policy() {
        let config = ModelConfig::new(json!({"instance_group": [
            {"kind": "KIND_CPU", "count": 2},
            {"kind": "KIND_CPU", "count": 3, "host_policy": "left"},
            {"kind": "KIND_CPU", "count": "4", "host_policy": "right"},
            {"kind": "KIND_GPU", "count": 2, "gpus": [0, 1]},
            {"kind": "KIND_GPU", "count": 1, "gpus": [1, 2], "host_policy": "right"},
            {"kind": "KIND_MODEL", "count": 1},
        ]}));
        for (policy, expected) in [
            ("cpu", 2),
            ("left", 3),
            ("right", 6),
            ("gpu_0", 2),
            ("gpu_1", 2),
            ("model", 1),
            // A name that no group has.
            ("other", config.instance_count()),
        ] {
            let counted = neighbours(&config, &json!({policy: {}}));
            assert_eq!(counted, expected, "{policy}");
        }
        assert_eq!(neighbours(&config, &Value::Null), config.instance_count());
        assert_eq!(
            neighbours(&ModelConfig::new(json!({})), &json!({"cpu": {}})),
            0
        );
    }
}
