//! Instance groups: filled from the backend's preference and the devices of the machine, then
//! checked.

use conch_proto::inference::model_config::SchedulingChoice;
use conch_proto::inference::model_instance_group::Kind;
use conch_proto::inference::{ModelConfig, ModelInstanceGroup};

use crate::validate::PLATFORM_TENSORRT;
use crate::{ConfigError, InstanceKind};

/// The GPUs that models may use; none on a machine without.
#[derive(Clone, Debug, Default)]
pub struct Gpus {
    /// Ascending.
    pub ids: Vec<i32>,
    /// What a GPU had to offer at least to be listed; for messages.
    pub min_compute_capability: f64,
}

/// An instance group that a backend prefers where the configuration leaves it open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredGroup {
    /// `None`: automatic.
    pub kind: Option<InstanceKind>,
    pub count: u64,
    pub device_ids: Vec<u64>,
}

/// Gives every group a name, a kind other than automatic, a count and its GPUs, then checks them.
/// An ensemble has none.
///
/// `preferred` is the backend's wish, first one first.
///
/// # Errors
/// `InvalidArg` in upstream's words for a device that is not there, GPUs on another kind, and
/// profiles on another platform than TensorRT.
pub fn resolve_instance_groups(
    config: &mut ModelConfig,
    preferred: &[PreferredGroup],
    gpus: &Gpus,
) -> Result<(), ConfigError> {
    if matches!(
        config.scheduling_choice,
        Some(SchedulingChoice::EnsembleScheduling(_))
    ) {
        return Ok(());
    }
    if config.instance_group.is_empty() {
        let mut group = preferred_group(preferred, gpus);
        group.name.clone_from(&config.name);
        config.instance_group.push(group);
    }
    let ModelConfig {
        name,
        backend,
        instance_group,
        ..
    } = config;
    for (index, group) in instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{name}_{index}");
        }
        resolve(group, backend, preferred, gpus);
    }
    config
        .instance_group
        .iter()
        .try_for_each(|group| check(config, group, gpus))
}

/// Moves the groups that are on GPUs to CPUs, to look at a configuration on a machine that may have
/// others. Returns whether there are any.
pub fn without_gpus(config: &mut ModelConfig) -> bool {
    let groups = config.instance_group.iter_mut();
    let mut has_some = false;
    for group in groups.filter(|group| group.kind == Kind::Gpu as i32) {
        group.set_kind(Kind::Cpu);
        group.gpus.clear();
        has_some = true;
    }
    has_some
}

/// The group of a model that configures none.
fn preferred_group(preferred: &[PreferredGroup], gpus: &Gpus) -> ModelInstanceGroup {
    let mut group = ModelInstanceGroup::default();
    let usable = preferred
        .iter()
        .find(|wish| wish.kind != Some(InstanceKind::Gpu) || !gpus.ids.is_empty());
    if let Some(wish) = usable {
        group.gpus = match wish.kind {
            Some(InstanceKind::Gpu) => present(wish, gpus),
            // Unknown ids stay, so that they turn the group into one on the CPU below.
            None => wish
                .device_ids
                .iter()
                .map(|id| i32::try_from(*id).unwrap_or(i32::MAX))
                .collect(),
            Some(InstanceKind::Cpu | InstanceKind::Model) => Vec::new(),
        };
        group.set_kind(wish.kind.map_or(Kind::Auto, kind_number));
        group.count = i32::try_from(wish.count).unwrap_or(i32::MAX);
    }
    group
}

fn resolve(
    group: &mut ModelInstanceGroup,
    backend: &str,
    preferred: &[PreferredGroup],
    gpus: &Gpus,
) {
    if group.kind == Kind::Auto as i32 {
        let is_possible = !gpus.ids.is_empty() && group.gpus.iter().all(|id| gpus.ids.contains(id));
        // Upstream puts such a group on the GPUs, whose backend then refuses it.
        let is_unwanted = group.gpus.is_empty() && wants_cpus_only(preferred);
        let is_on_gpu = is_possible && !is_unwanted;
        group.set_kind(if is_on_gpu { Kind::Gpu } else { Kind::Cpu });
    }
    for wish in preferred
        .iter()
        .filter(|wish| wish.kind.map(|kind| kind_number(kind) as i32) == Some(group.kind))
    {
        if group.kind == Kind::Gpu as i32 && group.gpus.is_empty() && !wish.device_ids.is_empty() {
            group.gpus = present(wish, gpus);
            if group.gpus.is_empty() {
                continue;
            }
        }
        if group.count < 1 && wish.count > 0 {
            group.count = i32::try_from(wish.count).unwrap_or(i32::MAX);
        }
    }
    if group.count < 1 {
        let is_doubled =
            group.kind == Kind::Cpu as i32 && matches!(backend, "tensorflow" | "onnxruntime");
        group.count = if is_doubled { 2 } else { 1 };
    }
    if group.kind == Kind::Gpu as i32 && group.gpus.is_empty() {
        group.gpus.clone_from(&gpus.ids);
    }
}

/// Whether a backend says where it runs, and never names a GPU.
fn wants_cpus_only(preferred: &[PreferredGroup]) -> bool {
    let is_off_gpu =
        |wish: &PreferredGroup| matches!(wish.kind, Some(InstanceKind::Cpu | InstanceKind::Model));
    !preferred.is_empty() && preferred.iter().all(is_off_gpu)
}

/// The wished devices that are there.
fn present(wish: &PreferredGroup, gpus: &Gpus) -> Vec<i32> {
    wish.device_ids
        .iter()
        .filter_map(|id| i32::try_from(*id).ok())
        .filter(|id| gpus.ids.contains(id))
        .collect()
}

fn kind_number(kind: InstanceKind) -> Kind {
    match kind {
        InstanceKind::Cpu => Kind::Cpu,
        InstanceKind::Gpu => Kind::Gpu,
        InstanceKind::Model => Kind::Model,
    }
}

fn check(config: &ModelConfig, group: &ModelInstanceGroup, gpus: &Gpus) -> Result<(), ConfigError> {
    let subject = format!("instance group {} of model {}", group.name, config.name);
    match Kind::try_from(group.kind) {
        Ok(Kind::Gpu) => {
            if group.gpus.is_empty() {
                return Err(ConfigError::invalid(format!(
                    "{subject} has kind KIND_GPU but no GPUs are available"
                )));
            }
            if let Some(id) = group.gpus.iter().find(|id| !gpus.ids.contains(id)) {
                let ids: Vec<String> = gpus.ids.iter().map(i32::to_string).collect();
                return Err(ConfigError::invalid(format!(
                    "{subject} specifies invalid or unsupported gpu id {id}. GPUs with at least \
                     the minimum required CUDA compute compatibility of {:.6} are: {}",
                    gpus.min_compute_capability,
                    ids.join(", ")
                )));
            }
        }
        Ok(kind @ (Kind::Cpu | Kind::Model)) => {
            if !group.gpus.is_empty() {
                return Err(ConfigError::invalid(format!(
                    "{subject} has kind {} but specifies one or more GPUs",
                    kind.as_str_name()
                )));
            }
        }
        Ok(Kind::Auto) | Err(_) => {
            return Err(ConfigError::internal(format!(
                "{subject} has unexpected kind KIND_AUTO"
            )));
        }
    }
    if config.platform != PLATFORM_TENSORRT && !group.profile.is_empty() {
        // The missing space is upstream's.
        return Err(ConfigError::invalid(format!(
            "{subject} and platform {}specifies profile field which is only supported for TensorRT \
             models",
            config.platform
        )));
    }
    group
        .profile
        .iter()
        .try_for_each(|profile| check_profile(&subject, &config.platform, profile))
}

fn check_profile(subject: &str, platform: &str, profile: &str) -> Result<(), ConfigError> {
    if profile.is_empty() {
        return Err(ConfigError::invalid("profile name must not be empty"));
    }
    let text = profile.trim_start();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = digits
        .split(|character: char| !character.is_ascii_digit())
        .next()
        .unwrap_or_default();
    if digits.is_empty() {
        return Err(ConfigError::invalid(format!(
            "unable to parse '{profile}': stoi"
        )));
    }
    let is_negative = text.starts_with('-') && digits.chars().any(|digit| digit != '0');
    if is_negative || digits.parse::<i32>().is_err() {
        return Err(ConfigError::invalid(format!(
            "{subject} and platform {platform} specifies invalid profile {profile}. The field \
             should contain the string representation of a non-negative integer."
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_text;

    fn wish(kind: Option<InstanceKind>, count: u64, device_ids: &[u64]) -> PreferredGroup {
        PreferredGroup {
            kind,
            count,
            device_ids: device_ids.to_vec(),
        }
    }

    fn resolved(
        text: &str,
        preferred: &[PreferredGroup],
        gpus: &[i32],
    ) -> Result<Vec<ModelInstanceGroup>, String> {
        let mut config = parse_text("f", format!("name: \"m\" {text}")).unwrap();
        let gpus = Gpus {
            ids: gpus.to_vec(),
            min_compute_capability: 6.0,
        };
        resolve_instance_groups(&mut config, preferred, &gpus).map_err(|error| error.message)?;
        Ok(config.instance_group)
    }

    fn check(text: &str, preferred: &[PreferredGroup], gpus: &[i32], expected: &str) {
        let expected = parse_text("f", format!("instance_group [ {expected} ]"))
            .unwrap()
            .instance_group;
        assert_eq!(
            resolved(text, preferred, gpus),
            Ok(expected),
            "{text} {preferred:?} {gpus:?}"
        );
    }

    #[test]
    fn groups_are_resolved() {
        // Configuration, GPUs, resolved groups.
        let table: &[(&str, &[i32], &str)] = &[
            ("", &[], r#"{ name: "m" kind: KIND_CPU count: 1 }"#),
            (
                "",
                &[0, 1],
                r#"{ name: "m" kind: KIND_GPU count: 1 gpus: [0, 1] }"#,
            ),
            (
                r#"backend: "onnxruntime""#,
                &[],
                r#"{ name: "m" kind: KIND_CPU count: 2 }"#,
            ),
            (
                r#"backend: "tensorflow""#,
                &[],
                r#"{ name: "m" kind: KIND_CPU count: 2 }"#,
            ),
            (
                r#"backend: "onnxruntime""#,
                &[0],
                r#"{ name: "m" kind: KIND_GPU count: 1 gpus: 0 }"#,
            ),
            (
                r#"backend: "onnxruntime" instance_group { count: 1 }"#,
                &[],
                r#"{ name: "m_0" kind: KIND_CPU count: 1 }"#,
            ),
            (
                "instance_group [ { kind: KIND_CPU count: 3 }, { kind: KIND_MODEL }, \
                 { name: \"n\" count: -2 } ]",
                &[],
                r#"{ name: "m_0" kind: KIND_CPU count: 3 }, { name: "m_1" kind: KIND_MODEL count:
                   1 }, { name: "n" kind: KIND_CPU count: 1 }"#,
            ),
            (
                "instance_group { kind: KIND_GPU count: 2 }",
                &[1, 3],
                r#"{ name: "m_0" kind: KIND_GPU count: 2 gpus: [1, 3] }"#,
            ),
            (
                "instance_group { gpus: [ 1 ] }",
                &[0, 1],
                r#"{ name: "m_0" kind: KIND_GPU count: 1 gpus: 1 }"#,
            ),
            (
                r#"platform: "tensorrt_plan" instance_group { profile: [ "0", "12" ] }"#,
                &[],
                r#"{ name: "m_0" kind: KIND_CPU count: 1 profile: [ "0", "12" ] }"#,
            ),
            ("ensemble_scheduling { }", &[], ""),
        ];
        for (text, gpus, expected) in table {
            check(text, &[], gpus, expected);
        }
    }

    #[test]
    fn a_backends_wishes_fill_what_is_left_open() {
        use InstanceKind::{Cpu, Gpu};
        // Configuration, wishes of the backend, GPUs, resolved groups.
        let table: &[(&str, &[PreferredGroup], &[i32], &str)] = &[
            // A backend that runs on CPUs alone gets no group of its own accord on a GPU.
            (
                "instance_group [ { count: 2 }, { gpus: [ 0 ] } ]",
                &[wish(Some(Cpu), 0, &[])],
                &[0],
                r#"{ name: "m_0" kind: KIND_CPU count: 2 },
                   { name: "m_1" kind: KIND_GPU count: 1 gpus: 0 }"#,
            ),
            // A wish for a GPU is passed over where there is none.
            (
                "",
                &[wish(Some(Gpu), 4, &[]), wish(Some(Cpu), 3, &[])],
                &[],
                r#"{ name: "m" kind: KIND_CPU count: 3 }"#,
            ),
            (
                "",
                &[wish(Some(Gpu), 4, &[0, 7]), wish(Some(Cpu), 3, &[])],
                &[0, 1],
                r#"{ name: "m" kind: KIND_GPU count: 4 gpus: 0 }"#,
            ),
            (
                "",
                &[wish(None, 5, &[])],
                &[],
                r#"{ name: "m" kind: KIND_CPU count: 5 }"#,
            ),
            (
                "",
                &[wish(None, 5, &[1])],
                &[0, 1],
                r#"{ name: "m" kind: KIND_GPU count: 5 gpus: 1 }"#,
            ),
            // A wish fills what a configured group of its kind leaves open.
            (
                "instance_group { kind: KIND_CPU }",
                &[wish(Some(Cpu), 6, &[])],
                &[],
                r#"{ name: "m_0" kind: KIND_CPU count: 6 }"#,
            ),
            (
                "instance_group { kind: KIND_CPU count: 2 }",
                &[wish(Some(Cpu), 6, &[])],
                &[],
                r#"{ name: "m_0" kind: KIND_CPU count: 2 }"#,
            ),
            (
                "instance_group { kind: KIND_GPU }",
                &[wish(Some(Gpu), 2, &[1, 9])],
                &[0, 1],
                r#"{ name: "m_0" kind: KIND_GPU count: 2 gpus: 1 }"#,
            ),
            (
                "instance_group { kind: KIND_GPU }",
                &[wish(Some(Gpu), 2, &[9])],
                &[0, 1],
                r#"{ name: "m_0" kind: KIND_GPU count: 1 gpus: [0, 1] }"#,
            ),
        ];
        for (text, preferred, gpus, expected) in table {
            check(text, preferred, gpus, expected);
        }
    }

    #[test]
    fn refusals() {
        let trt = "platform: \"tensorrt_plan\"";
        for (text, gpus, expected) in [
            (
                "instance_group { kind: KIND_GPU }",
                &[][..],
                "instance group m_0 of model m has kind KIND_GPU but no GPUs are available",
            ),
            (
                "instance_group { kind: KIND_CPU gpus: 0 }",
                &[0],
                "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
            ),
            // Automatic, with a GPU that is not there: it falls to the CPU, and there its GPUs are
            // too many. As upstream.
            (
                "instance_group { gpus: 0 }",
                &[],
                "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
            ),
            (
                "instance_group { kind: KIND_MODEL gpus: 0 }",
                &[0],
                "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
            ),
            (
                "instance_group { name: \"g\" kind: KIND_GPU gpus: [ 0, 99 ] }",
                &[0, 1],
                "instance group g of model m specifies invalid or unsupported gpu id 99. GPUs with \
                 at least the minimum required CUDA compute compatibility of 6.000000 are: 0, 1",
            ),
            (
                "platform: \"p\" instance_group { profile: \"0\" }",
                &[],
                "instance group m_0 of model m and platform pspecifies profile field which is only \
                 supported for TensorRT models",
            ),
            (
                &format!("{trt} instance_group {{ profile: \"-1\" }}"),
                &[],
                "instance group m_0 of model m and platform tensorrt_plan specifies invalid \
                 profile -1. The field should contain the string representation of a non-negative \
                 integer.",
            ),
            (
                &format!("{trt} instance_group {{ profile: \"x\" }}"),
                &[],
                "unable to parse 'x': stoi",
            ),
            (
                &format!("{trt} instance_group {{ profile: \"\" }}"),
                &[],
                "profile name must not be empty",
            ),
        ] {
            assert_eq!(
                resolved(text, &[], gpus),
                Err(expected.to_owned()),
                "{text}"
            );
        }
    }
}
