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

/// The first GPU that a model's configuration asks for an instance on; 0 where it leaves open
/// which.
pub fn first_gpu(config: &ModelConfig) -> Option<i32> {
    let groups = config.json().get("instance_group")?.as_array()?;
    let is_on_gpus = |group: &&Value| group.get("kind") == Some(&Value::from("KIND_GPU"));
    let group = groups.iter().find(is_on_gpus)?;
    let device = group.pointer("/gpus/0").and_then(Value::as_i64);
    let device = device.and_then(|device| i32::try_from(device).ok());
    Some(device.unwrap_or(0))
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

/// Why an instance of `KIND_GPU` cannot be had.
#[must_use]
pub fn gpu_instance_error(error: Error, model_name: &str, context: &InstanceContext) -> Error {
    error.context(format_args!(
        "unable to load model '{model_name}': instance '{}' is of KIND_GPU",
        context.name
    ))
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
    fn finds_the_first_gpu() {
        for (groups, expected) in [
            ("", None),
            (r#"{"kind": "KIND_CPU"}"#, None),
            (r#"{"kind": "KIND_GPU"}"#, Some(0)),
            (
                r#"{"kind": "KIND_CPU"}, {"kind": "KIND_GPU", "gpus": [2, 1]}"#,
                Some(2),
            ),
        ] {
            let json = format!(r#"{{"instance_group": [{groups}]}}"#);
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            assert_eq!(first_gpu(&config), expected, "{groups}");
        }
    }

    fn context(kind: Kind) -> InstanceContext {
        InstanceContext {
            name: "m_0".to_owned(),
            kind,
            device_id: 0,
            is_passive: false,
            profiles: vec![],
            secondary_devices: vec![],
            host_policy: serde_json::Value::Null,
            memory_manager: None,
        }
    }

    #[test]
    fn names_the_instance_on_a_gpu() {
        let error = Error::unavailable("no driver");
        let error = gpu_instance_error(error, "m", &context(Kind::Gpu));
        let text = "unable to load model 'm': instance 'm_0' is of KIND_GPU: no driver";
        assert_eq!(error, Error::unavailable(text));
    }

    #[test]
    fn refuses_gpus() {
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
