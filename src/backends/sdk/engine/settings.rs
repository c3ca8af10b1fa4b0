//! Settings and refusals that all engines' backends have.

use serde_json::Value;

use crate::{Attributes, BackendConfig, Error, InstanceContext, Kind, ModelConfig};

/// Rows that a model which batches gets if neither its configuration nor the command line says
/// otherwise.
pub const DEFAULT_MAX_BATCH_SIZE: i64 = 4;

/// The backend setting `default-max-batch-size`, or [`DEFAULT_MAX_BATCH_SIZE`].
///
/// # Errors
/// `InvalidArgument` if it is no integer.
pub fn default_max_batch_size(config: &BackendConfig) -> Result<i64, Error> {
    let size = config.integer("default-max-batch-size")?;
    Ok(size.unwrap_or(DEFAULT_MAX_BATCH_SIZE))
}

/// For backends that drive CPUs only: a model without an instance group must not land on a GPU. How
/// many instances it gets is the server's choice.
///
/// # Errors
/// What the server says.
pub fn prefer_cpus(attributes: &mut Attributes<'_>) -> Result<(), Error> {
    attributes.prefer(Kind::Cpu, 0, &[])
}

/// Whether a model's configuration asks for an instance on a GPU.
pub fn has_gpu_instances(config: &ModelConfig) -> bool {
    let groups = config
        .json()
        .get("instance_group")
        .and_then(Value::as_array);
    let mut kinds = groups.into_iter().flatten().map(|group| group.get("kind"));
    kinds.any(|kind| kind.and_then(Value::as_str) == Some("KIND_GPU"))
}

/// For backends that drive CPUs only: refuses an instance of `KIND_GPU`.
///
/// # Errors
/// `Unsupported` if it is of that kind.
pub fn refuse_gpu(backend: &str, model_name: &str, context: &InstanceContext) -> Result<(), Error> {
    if context.kind != Kind::Gpu {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "unable to load model '{model_name}': instance '{}' is of KIND_GPU, and the {backend} \
         backend runs on CPUs only; set kind: KIND_CPU in the model's instance_group",
        context.name
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_default_batch_size() {
        for (text, expected) in [
            ("", Some(4)),
            (r#"{"cmdline": {}}"#, Some(4)),
            (r#"{"cmdline": {"default-max-batch-size": "0"}}"#, Some(0)),
            (r#"{"cmdline": {"default-max-batch-size": "32"}}"#, Some(32)),
            (r#"{"cmdline": {"default-max-batch-size": "x"}}"#, None),
        ] {
            let config = BackendConfig::parse(text.as_bytes()).unwrap();
            assert_eq!(default_max_batch_size(&config).ok(), expected, "{text}");
        }
    }

    #[test]
    fn finds_groups_on_gpus() {
        for (groups, expected) in [
            ("", false),
            (r#"{"kind": "KIND_CPU"}"#, false),
            (
                r#"{"kind": "KIND_CPU"}, {"kind": "KIND_GPU", "gpus": [0]}"#,
                true,
            ),
        ] {
            let json = format!(r#"{{"instance_group": [{groups}]}}"#);
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            assert_eq!(has_gpu_instances(&config), expected, "{groups}");
        }
    }

    #[test]
    fn refuses_gpus() {
        let context = |kind| InstanceContext {
            name: "m_0".to_owned(),
            kind,
            device_id: 0,
            is_passive: false,
            profiles: vec![],
            secondary_devices: vec![],
            host_policy: serde_json::Value::Null,
            memory_manager: None,
        };
        assert_eq!(refuse_gpu("tensorflow", "m", &context(Kind::Cpu)), Ok(()));
        assert_eq!(refuse_gpu("tensorflow", "m", &context(Kind::Model)), Ok(()));
        let refused = refuse_gpu("tensorflow", "m", &context(Kind::Gpu)).unwrap_err();
        assert_eq!(
            refused.message(),
            "unable to load model 'm': instance 'm_0' is of KIND_GPU, and the tensorflow backend \
             runs on CPUs only; set kind: KIND_CPU in the model's instance_group"
        );
    }
}
