//! From a model's instance groups to the instances to be made.

use std::sync::Arc;

use conch_config::{InstanceGroup, InstanceKind};
use conch_engine::execution::cores::InstancePlan;
use conch_engine::execution::warm_up::WarmUp;
use conch_engine::{Error, InstanceSpec, ModelVersion};

use super::Lifecycle;
use super::load_plan::LoadPlan;

/// The instances of a model in upstream's order: by group, then by count, then by GPU.
///
/// # Errors
/// INVALID_ARG if the groups ask for more than [`INSTANCES_MAX`], or have none at all.
pub(crate) fn instance_specs(
    model: &str,
    groups: &[InstanceGroup],
) -> Result<Vec<InstanceSpec>, Error> {
    let mut specs = Vec::new();
    for group in groups {
        let devices: &[i32] = match group.kind {
            InstanceKind::Gpu => &group.gpus,
            // Upstream counts instances without a GPU to device 0.
            InstanceKind::Cpu | InstanceKind::Model => &[0],
        };
        let wanted = u64::from(group.count)
            .saturating_mul(devices.len() as u64)
            .saturating_add(specs.len() as u64);
        if wanted > INSTANCES_MAX {
            return Err(Error::invalid(format!(
                "model '{model}' asks for {wanted} instances, at most {INSTANCES_MAX} are allowed"
            )));
        }
        for index in 0..group.count {
            for device in devices {
                specs.push(InstanceSpec {
                    name: format!("{}_{index}", group.name),
                    kind: group.kind,
                    device_id: *device,
                    host_policy: host_policy(group, *device),
                    is_passive: group.is_passive,
                    profiles: group.profiles.clone(),
                    secondary_devices: group.secondary_devices.clone(),
                    rate_limit: group.rate_limit.clone(),
                });
            }
        }
    }
    if specs.is_empty() {
        return Err(Error::invalid(format!("model '{model}' has no instance")));
    }
    Ok(specs)
}

fn host_policy(group: &InstanceGroup, device: i32) -> String {
    match group.kind {
        _ if !group.host_policy.is_empty() => group.host_policy.to_string(),
        InstanceKind::Cpu => "cpu".to_owned(),
        InstanceKind::Model => "model".to_owned(),
        InstanceKind::Gpu => format!("gpu_{device}"),
    }
}

/// Instances of one model version. Each has a thread (and what its backend allocates); a typing
/// error in `count` must not take the host down.
const INSTANCES_MAX: u64 = 1_024;

/// The instances that `config` (the backend's completions included) wants of a version.
pub(super) fn instance_plan(
    lifecycle: &Lifecycle,
    plan: &LoadPlan,
    entry: &Arc<ModelVersion>,
    config: &conch_config::ResolvedConfig,
    backend: &dyn conch_engine::Backend,
) -> Result<InstancePlan, Error> {
    Ok(InstancePlan {
        specs: instance_specs(&plan.id.name, &config.instance_groups)?,
        policy: backend.execution_policy(),
        is_parallel: is_parallel(backend),
        warm_up: WarmUp::prepare(entry, &plan.candidate.path, &lifecycle.budget)?,
        limiter: lifecycle.limiter.clone(),
        device_cores: Arc::clone(&lifecycle.device_cores),
        progress: Arc::default(),
    })
}

/// Whether instances of one model are made concurrently: the operator's word, else the backend's.
fn is_parallel(backend: &dyn conch_engine::Backend) -> bool {
    match std::env::var_os("TRITON_PARALLEL_INSTANCE_LOADING") {
        Some(value) => value == "1",
        None => backend.allows_parallel_instances(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(kind: InstanceKind, count: u32, gpus: &[i32], host_policy: &str) -> InstanceGroup {
        InstanceGroup {
            name: "g".into(),
            kind,
            count,
            gpus: gpus.to_vec(),
            is_passive: false,
            profiles: Vec::new(),
            host_policy: host_policy.into(),
            secondary_devices: Vec::new(),
            rate_limit: conch_config::RateLimit::default(),
        }
    }

    #[test]
    fn groups_become_instances() {
        let groups = [
            group(InstanceKind::Cpu, 2, &[], ""),
            group(InstanceKind::Gpu, 2, &[3, 5], ""),
            group(InstanceKind::Model, 1, &[], ""),
            group(InstanceKind::Gpu, 1, &[1], "own"),
        ];
        let specs = instance_specs("m", &groups).unwrap();
        let seen: Vec<(&str, i32, &str)> = specs
            .iter()
            .map(|spec| {
                (
                    spec.name.as_str(),
                    spec.device_id,
                    spec.host_policy.as_str(),
                )
            })
            .collect();
        let expected = [
            ("g_0", 0, "cpu"),
            ("g_1", 0, "cpu"),
            ("g_0", 3, "gpu_3"),
            ("g_0", 5, "gpu_5"),
            ("g_1", 3, "gpu_3"),
            ("g_1", 5, "gpu_5"),
            ("g_0", 0, "model"),
            ("g_0", 1, "own"),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn absurd_counts_are_refused() {
        let at = |count| {
            instance_specs(
                "m",
                &[
                    group(InstanceKind::Cpu, 24, &[], ""),
                    group(InstanceKind::Cpu, count, &[], ""),
                ],
            )
        };
        assert_eq!(at(1_000).unwrap().len(), 1_024);
        assert_eq!(
            at(1_001).unwrap_err(),
            Error::invalid("model 'm' asks for 1025 instances, at most 1024 are allowed")
        );
        assert!(at(u32::MAX).is_err());
        for groups in [vec![group(InstanceKind::Gpu, 1, &[], "")], Vec::new()] {
            let refused = instance_specs("m", &groups).unwrap_err();
            assert_eq!(refused, Error::invalid("model 'm' has no instance"));
        }
    }
}
