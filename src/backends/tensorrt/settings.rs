//! Settings of the backend and of models, under the names that upstream's backend gave them.

use std::path::PathBuf;

use conch_backend_sdk as sdk;
use sdk::serde_json::Value;
use sdk::{BackendConfig, Error, ModelConfig};

use crate::trt::AllocationStrategy;

/// What `--backend-config=tensorrt,...` says, beside the places of libraries.
#[derive(Debug, PartialEq, Eq)]
pub struct BackendSettings {
    pub plugins: Vec<PathBuf>,
    pub is_version_compatible: bool,
    /// What is set and has no effect, and why.
    pub notes: Vec<String>,
}

impl BackendSettings {
    /// # Errors
    /// `InvalidArgument` if a value is none that the setting can have.
    pub fn read(config: &BackendConfig) -> Result<Self, Error> {
        let plugins = config.setting("plugins").unwrap_or_default();
        let mut notes = Vec::new();
        if config.boolean("coalesce-request-input")? == Some(true) {
            notes.push(
                "backend setting 'coalesce-request-input' has no effect: neighbours in memory are \
                 always copied as one"
                    .to_owned(),
            );
        }
        match config.setting("execution-policy") {
            None => {}
            Some("DEVICE_BLOCKING" | "BLOCKING") => notes.push(
                "backend setting 'execution-policy' has no effect: instances never block"
                    .to_owned(),
            ),
            Some(other) => notes.push(format!(
                "backend setting 'execution-policy' is 'DEVICE_BLOCKING' or 'BLOCKING', not \
                 '{other}'"
            )),
        }
        Ok(BackendSettings {
            plugins: plugins
                .split(';')
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
                .collect(),
            is_version_compatible: config.boolean("version-compatible")?.unwrap_or(false),
            notes,
        })
    }
}

/// How a model is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub strategy: AllocationStrategy,
    pub has_output_stream: bool,
    pub priority: i32,
}

impl Settings {
    /// # Errors
    /// `InvalidArgument`, in upstream's words, for a value that a parameter cannot have;
    /// `Unsupported` for several GPUs in one instance.
    pub fn read(model_name: &str, config: &ModelConfig) -> Result<Self, Error> {
        let strategy = match config.parameter("execution_context_allocation_strategy") {
            None | Some("STATIC") => AllocationStrategy::Static,
            Some("ON_PROFILE_CHANGE") => AllocationStrategy::OnProfileChange,
            Some(other) => {
                return Err(Error::invalid(format!(
                    "Invalid value for 'execution_context_allocation_strategy': '{other}' for \
                     model instance '{model_name}'. Supported values are 'STATIC' and \
                     'ON_PROFILE_CHANGE'."
                )));
            }
        };
        if config.boolean_parameter("enable_multi_device")? == Some(true) {
            return Err(Error::unsupported(format!(
                "parameter 'enable_multi_device' of model '{model_name}': this backend runs an \
                 instance on one GPU"
            )));
        }
        let optimization = config.json().get("optimization");
        Ok(Settings {
            strategy,
            has_output_stream: flag(optimization, "/cuda/output_copy_stream"),
            priority: config.stream_priority(),
        })
    }
}

/// What is set and has no effect here, and why.
pub fn ineffective(config: &ModelConfig) -> Vec<String> {
    let optimization = config.json().get("optimization");
    let mut notes = Vec::new();
    if flag(optimization, "/cuda/busy_wait_events") {
        notes.push(
            "'busy_wait_events' has no effect: no thread waits for events, they are polled"
                .to_owned(),
        );
    }
    if flag(optimization, "/eager_batching") {
        notes.push(
            "'eager_batching' has no effect: a batch that the server brings is prepared at once"
                .to_owned(),
        );
    }
    let threshold = optimization.and_then(|at| at.get("gather_kernel_buffer_threshold"));
    let is_zero = |value: &Value| value.as_u64() == Some(0) || value.as_str() == Some("0");
    if threshold.is_some_and(|value| !is_zero(value) && !value.is_null()) {
        notes.push(
            "'gather_kernel_buffer_threshold' has no effect: inputs are gathered by copies, not by \
             a kernel"
                .to_owned(),
        );
    }
    if let Some(priority) = optimization
        .and_then(|at| at.get("priority"))
        .and_then(Value::as_str)
        && !matches!(
            priority,
            "PRIORITY_DEFAULT" | "PRIORITY_MAX" | "PRIORITY_MIN" | ""
        )
    {
        notes.push(format!(
            "TRT backend does not support the provided stream priority '{priority}', using \
             'PRIORITY_DEFAULT'."
        ));
    }
    notes
}

fn flag(value: Option<&Value>, path: &str) -> bool {
    value.and_then(|value| value.pointer(path)) == Some(&Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::json;

    use super::*;

    #[test]
    fn settings_of_the_backend() {
        let read = |text: &str| {
            BackendSettings::read(&BackendConfig::parse(text.as_bytes()).unwrap())
                .map_err(|error| error.message().to_owned())
        };
        assert_eq!(
            read(r#"{"cmdline": {"plugins": "/a.so;/b.so;", "version-compatible": "true"}}"#),
            Ok(BackendSettings {
                plugins: vec!["/a.so".into(), "/b.so".into()],
                is_version_compatible: true,
                notes: Vec::new(),
            })
        );
        assert_eq!(
            read("{}"),
            Ok(BackendSettings {
                plugins: Vec::new(),
                is_version_compatible: false,
                notes: Vec::new(),
            })
        );
        let inert =
            r#"{"cmdline": {"execution-policy": "BLOCKING", "coalesce-request-input": "1"}}"#;
        assert_eq!(read(inert).unwrap().notes.len(), 2);
        assert!(read(r#"{"cmdline": {"version-compatible": "perhaps"}}"#).is_err());
        assert!(read(r#"{"cmdline": {"coalesce-request-input": "2"}}"#).is_err());
    }

    #[test]
    fn settings_of_models() {
        let read = |config: Value| {
            Settings::read("m", &ModelConfig::new(config))
                .map_err(|error| error.message().to_owned())
        };
        let parameter =
            |name: &str, value: &str| json!({"parameters": {name: {"string_value": value}}});
        let defaults = read(json!({})).unwrap();
        assert_eq!(defaults.strategy, AllocationStrategy::Static);
        assert!(!defaults.has_output_stream);
        let name = "execution_context_allocation_strategy";
        let chosen = read(parameter(name, "ON_PROFILE_CHANGE")).unwrap();
        assert_eq!(chosen.strategy, AllocationStrategy::OnProfileChange);
        assert_eq!(
            read(parameter(name, "x")).unwrap_err(),
            "Invalid value for 'execution_context_allocation_strategy': 'x' for model instance \
             'm'. Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'."
        );
        assert!(read(parameter("enable_multi_device", "true")).is_err());
        let config = json!({"optimization": {"cuda": {"output_copy_stream": true}}});
        assert!(read(config).unwrap().has_output_stream);
    }

    #[test]
    fn tells_what_has_no_effect() {
        let notes = |optimization: Value| {
            ineffective(&ModelConfig::new(json!({"optimization": optimization}))).len()
        };
        assert_eq!(notes(json!({})), 0);
        assert_eq!(notes(json!({"cuda": {"busy_wait_events": true}})), 1);
        assert_eq!(
            notes(json!({"eager_batching": true, "priority": "PRIORITY_MAX"})),
            1
        );
        assert_eq!(notes(json!({"gather_kernel_buffer_threshold": "8"})), 1);
        assert_eq!(notes(json!({"gather_kernel_buffer_threshold": 0})), 0);
        assert_eq!(notes(json!({"priority": "PRIORITY_OTHER"})), 1);
    }
}
