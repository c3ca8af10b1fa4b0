//! What configurations and the command line set, under the names that Triton's TensorFlow backend
//! gave them.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use conch_backend_sdk as sdk;
use sdk::engine::c_string;
use sdk::serde_json::Value;
use sdk::{BackendConfig, Error, ModelConfig};

/// Tag of the graph that serves unless the configuration names another.
const DEFAULT_TAG: &str = "serve";

/// What all models share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSettings {
    pub allows_soft_placement: bool,
    pub default_max_batch_size: i64,
}

impl BackendSettings {
    /// # Errors
    /// `InvalidArgument` if a value is none that the setting can have.
    pub fn read(config: &BackendConfig) -> Result<Self, Error> {
        if let Some(version) = config.integer("version")?
            && version != 2
        {
            return Err(Error::invalid(format!(
                "backend setting 'version' is {version}, and only TensorFlow 2 is served"
            )));
        }
        if let Some(fraction) = config.setting("gpu-memory-fraction") {
            let is_number = fraction.trim().parse::<f64>().is_ok();
            if !is_number {
                return Err(Error::invalid(format!(
                    "expected a number for backend setting 'gpu-memory-fraction', got '{fraction}'"
                )));
            }
        }
        Ok(BackendSettings {
            allows_soft_placement: config.boolean("allow-soft-placement")?.unwrap_or(true),
            default_max_batch_size: sdk::engine::default_max_batch_size(config)?,
        })
    }
}

/// Backend settings that are there and concern GPUs alone.
pub fn ineffective_settings(config: &BackendConfig) -> impl Iterator<Item = &'static str> {
    let names = ["gpu-memory-fraction"].into_iter();
    names.filter(|name| config.setting(name).is_some())
}

/// The two forms of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    GraphDef,
    SavedModel,
}

impl Format {
    /// # Errors
    /// `InvalidArgument` if the platform is another.
    pub fn of(model_name: &str, config: &ModelConfig) -> Result<Self, Error> {
        let platform = config.json().get("platform").and_then(Value::as_str);
        match platform.unwrap_or_default() {
            "tensorflow_graphdef" => Ok(Format::GraphDef),
            "tensorflow_savedmodel" => Ok(Format::SavedModel),
            platform => Err(Error::invalid(format!(
                "platform {platform} not supported for TensorFlow model '{model_name}'"
            ))),
        }
    }
}

/// What the configuration of a model sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// Instances that share a session, at most.
    pub session_share_max: usize,
    /// Threads within an operation; 0 leaves the choice to the backend.
    pub intra_op_threads: i32,
    /// Operations at a time; 0 leaves the choice to the backend, and less runs them on the
    /// instance's own thread.
    pub inter_op_threads: i32,
    /// The session has threads of its own for operations.
    pub has_own_threads: bool,
    pub tag: CString,
    pub signature: Option<String>,
    pub init_ops_file: Option<String>,
    /// Libraries of operators. Relative names are meant from the model's folder.
    pub op_libraries: Vec<PathBuf>,
    /// `OptimizerOptions.GlobalJitLevel`.
    pub jit_level: i32,
}

impl ModelSettings {
    /// # Errors
    /// `InvalidArgument` if a value is none that the setting can have.
    pub fn read(model_name: &str, folder: &Path, config: &ModelConfig) -> Result<Self, Error> {
        if has_accelerators(config, "cpu") {
            return Err(Error::invalid(
                "CPU Execution Accelerator is not supported in TensorFlow backend",
            ));
        }
        let text = |name: &str| {
            let value = config.parameter(name).filter(|value| !value.is_empty());
            value.map(str::to_owned)
        };
        let share = config
            .integer_parameter("MAX_SESSION_SHARE_COUNT")?
            .unwrap_or(1);
        let session_share_max = usize::try_from(share)
            .ok()
            .filter(|&count| count > 0)
            .ok_or_else(|| wrong_number("MAX_SESSION_SHARE_COUNT", "positive", model_name))?;
        let intra_op_threads = thread_count(config, "TF_NUM_INTRA_THREADS")?;
        if intra_op_threads < 0 {
            return Err(wrong_number(
                "TF_NUM_INTRA_THREADS",
                "non-negative",
                model_name,
            ));
        }
        Ok(ModelSettings {
            session_share_max,
            intra_op_threads,
            inter_op_threads: thread_count(config, "TF_NUM_INTER_THREADS")?,
            has_own_threads: text("TF_USE_PER_SESSION_THREADS")
                .map(|value| boolean("TF_USE_PER_SESSION_THREADS", &value))
                .transpose()?
                .unwrap_or(false),
            tag: c_string(text("TF_GRAPH_TAG").as_deref().unwrap_or(DEFAULT_TAG))?,
            signature: text("TF_SIGNATURE_DEF"),
            init_ops_file: text("TF_INIT_OPS_FILE"),
            op_libraries: op_libraries(folder, config),
            jit_level: jit_level(config),
        })
    }
}

fn wrong_number(name: &str, what: &str, model_name: &str) -> Error {
    Error::invalid(format!(
        "parameter '{name}' must be {what} number for TensorFlow model '{model_name}'"
    ))
}

fn thread_count(config: &ModelConfig, name: &str) -> Result<i32, Error> {
    let count = config.integer_parameter(name)?.unwrap_or(0);
    i32::try_from(count)
        .map_err(|_| Error::invalid(format!("parameter '{name}' cannot be {count}")))
}

/// Upstream's documentation has on and yes besides true and 1.
fn boolean(name: &str, value: &str) -> Result<bool, Error> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err(Error::invalid(format!(
            "expected true or false for parameter '{name}', got '{value}'"
        ))),
    }
}

fn op_libraries(folder: &Path, config: &ModelConfig) -> Vec<PathBuf> {
    let names = config
        .json()
        .pointer("/model_operations/op_library_filename")
        .and_then(Value::as_array);
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    names.map(|name| folder.join(name)).collect()
}

/// Upstream's levels of `optimization { graph { level } }`, which are levels of XLA here.
fn jit_level(config: &ModelConfig) -> i32 {
    let level = config.json().pointer("/optimization/graph/level");
    match level.and_then(Value::as_i64) {
        Some(-1) => -1,
        Some(1) => 1,
        Some(2..) => 2,
        _ => 0,
    }
}

/// Whether instances have host policies of their own, and with them CPUs that others do not.
pub fn has_host_policies(config: &ModelConfig) -> bool {
    let groups = config
        .json()
        .get("instance_group")
        .and_then(Value::as_array);
    let mut groups = groups.into_iter().flatten();
    groups.any(|group| {
        let policy = group.get("host_policy").and_then(Value::as_str);
        policy.is_some_and(|policy| !policy.is_empty())
    })
}

/// Whether the configuration names accelerators of GPUs, which do nothing on CPUs.
pub fn has_gpu_accelerators(config: &ModelConfig) -> bool {
    has_accelerators(config, "gpu")
}

fn has_accelerators(config: &ModelConfig, device: &str) -> bool {
    let path = format!("/optimization/execution_accelerators/{device}_execution_accelerator");
    let list = config.json().pointer(&path).and_then(Value::as_array);
    list.is_some_and(|list| !list.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: &str) -> Result<ModelSettings, Error> {
        let config = ModelConfig::parse(json.as_bytes())?;
        ModelSettings::read("m", Path::new("/models/m"), &config)
    }

    fn parameters(list: &[(&str, &str)]) -> String {
        let entries: Vec<_> = list
            .iter()
            .map(|(name, value)| format!(r#""{name}": {{"string_value": "{value}"}}"#))
            .collect();
        format!(r#"{{"parameters": {{{}}}}}"#, entries.join(","))
    }

    #[test]
    fn reads_upstreams_parameters() {
        let set = settings(&parameters(&[
            ("MAX_SESSION_SHARE_COUNT", "3"),
            ("TF_NUM_INTRA_THREADS", "2"),
            ("TF_NUM_INTER_THREADS", "-1"),
            ("TF_USE_PER_SESSION_THREADS", "yes"),
            ("TF_GRAPH_TAG", "serve1"),
            ("TF_SIGNATURE_DEF", "serving2"),
            ("TF_INIT_OPS_FILE", "init_ops.json"),
        ]))
        .unwrap();
        assert_eq!(set.session_share_max, 3);
        assert_eq!((set.intra_op_threads, set.inter_op_threads), (2, -1));
        assert!(set.has_own_threads);
        assert_eq!(&*set.tag, c"serve1");
        assert_eq!(set.signature.as_deref(), Some("serving2"));
        assert_eq!(set.init_ops_file.as_deref(), Some("init_ops.json"));
        let unset = settings("{}").unwrap();
        assert_eq!((unset.session_share_max, unset.intra_op_threads), (1, 0));
        assert_eq!(&*unset.tag, c"serve");
        assert!(!unset.has_own_threads && unset.signature.is_none());
        // What is set to nothing is not set.
        let empty = settings(&parameters(&[
            ("TF_GRAPH_TAG", ""),
            ("TF_SIGNATURE_DEF", ""),
        ]));
        assert_eq!(empty.unwrap(), unset);
    }

    #[test]
    fn refuses_values_that_no_parameter_has() {
        for (name, value, expected) in [
            (
                "MAX_SESSION_SHARE_COUNT",
                "0",
                "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model \
                 'm'",
            ),
            (
                "TF_NUM_INTRA_THREADS",
                "-1",
                "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model \
                 'm'",
            ),
            (
                "TF_NUM_INTER_THREADS",
                "99999999999",
                "parameter 'TF_NUM_INTER_THREADS' cannot be 99999999999",
            ),
            (
                "TF_USE_PER_SESSION_THREADS",
                "perhaps",
                "expected true or false for parameter 'TF_USE_PER_SESSION_THREADS', got 'perhaps'",
            ),
        ] {
            let refused = settings(&parameters(&[(name, value)])).unwrap_err();
            assert_eq!(refused.message(), expected);
        }
        assert!(settings(&parameters(&[("TF_NUM_INTRA_THREADS", "many")])).is_err());
    }

    #[test]
    fn accelerators_are_of_gpus_only() {
        let with = |device: &str| {
            format!(
                r#"{{"optimization": {{"execution_accelerators":
                {{"{device}_execution_accelerator": [{{"name": "auto_mixed_precision"}}]}}}}}}"#
            )
        };
        assert_eq!(
            settings(&with("cpu")).unwrap_err().message(),
            "CPU Execution Accelerator is not supported in TensorFlow backend"
        );
        assert!(settings(&with("gpu")).is_ok());
        let is_named = |json: &str| {
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            has_gpu_accelerators(&config)
        };
        assert!(is_named(&with("gpu")) && !is_named(&with("cpu")) && !is_named("{}"));
    }

    #[test]
    fn knows_host_policies() {
        for (groups, expected) in [
            ("", false),
            (r#"{"kind": "KIND_CPU"}"#, false),
            (r#"{"host_policy": ""}, {"count": 2}"#, false),
            (r#"{"count": 2}, {"host_policy": "left"}"#, true),
        ] {
            let json = format!(r#"{{"instance_group": [{groups}]}}"#);
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            assert_eq!(has_host_policies(&config), expected, "{groups}");
        }
    }

    #[test]
    fn maps_graph_levels_as_upstream_does() {
        for (level, expected) in [(-1, -1), (0, 0), (1, 1), (2, 2), (7, 2), (-5, 0)] {
            let json = format!(r#"{{"optimization": {{"graph": {{"level": {level}}}}}}}"#);
            assert_eq!(settings(&json).unwrap().jit_level, expected, "{level}");
        }
        assert_eq!(settings("{}").unwrap().jit_level, 0);
    }

    #[test]
    fn knows_formats() {
        let format = |json: &str| {
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            Format::of("m", &config).map_err(|error| error.message().to_owned())
        };
        assert_eq!(
            format(r#"{"platform": "tensorflow_graphdef"}"#),
            Ok(Format::GraphDef)
        );
        assert_eq!(
            format(r#"{"platform": "tensorflow_savedmodel"}"#),
            Ok(Format::SavedModel)
        );
        assert_eq!(
            format(r#"{"platform": "onnxruntime_onnx"}"#),
            Err("platform onnxruntime_onnx not supported for TensorFlow model 'm'".to_owned())
        );
        assert!(format("{}").is_err());
    }

    #[test]
    fn reads_backend_settings() {
        let read = |text: &str| {
            let json = format!(r#"{{"cmdline": {{{text}}}}}"#);
            BackendSettings::read(&BackendConfig::parse(json.as_bytes()).unwrap())
        };
        let usual = read("").unwrap();
        assert!(usual.allows_soft_placement);
        assert_eq!(usual.default_max_batch_size, 4);
        let set = read(r#""allow-soft-placement": "false", "default-max-batch-size": "8""#);
        let set = set.unwrap();
        assert!(!set.allows_soft_placement);
        assert_eq!(set.default_max_batch_size, 8);
        assert!(read(r#""version": "2", "gpu-memory-fraction": "0.5""#).is_ok());
        for refused in [
            r#""version": "1""#,
            r#""gpu-memory-fraction": "much""#,
            r#""allow-soft-placement": "maybe""#,
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn finds_operators_in_the_models_folder() {
        let json =
            r#"{"model_operations": {"op_library_filename": ["libops.so", "/opt/libmore.so"]}}"#;
        assert_eq!(
            settings(json).unwrap().op_libraries,
            [
                PathBuf::from("/models/m/libops.so"),
                PathBuf::from("/opt/libmore.so")
            ]
        );
    }
}
