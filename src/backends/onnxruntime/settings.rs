//! Session options from a model's configuration, under the names that Triton's ONNX Runtime backend
//! gave them.

use std::path::{Path, PathBuf};

use conch_backend_sdk as sdk;
use sdk::engine::c_string;
use sdk::serde_json::Value;
use sdk::{Error, ModelConfig};

use crate::ort::{GraphOptimization, Provider, SessionOptions};

/// Reads the options of a model's sessions.
///
/// Threads within an operator: `intra_op_thread_count`; 0 leaves the choice to ONNX Runtime, which
/// takes every CPU. Where the parameter is absent (as most are), upstream leaves the choice to ONNX
/// Runtime for each instance, so that n instances contend with n threads for each CPU. Here the
/// CPUs are divided among the model's instances, each of which fills in its share.
///
/// # Errors
/// `InvalidArgument` if a value is none that the option can have, or an execution accelerator is
/// unknown.
pub fn session_options(
    model_name: &str,
    directory: &Path,
    config: &ModelConfig,
) -> Result<SessionOptions, Error> {
    let execution_mode = config.integer_parameter("execution_mode")?.unwrap_or(0);
    if !(0..=1).contains(&execution_mode) {
        return Err(Error::invalid(format!(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 \
             but got {execution_mode} ."
        )));
    }
    let intra_op_threads = config
        .integer_parameter("intra_op_thread_count")?
        .map(|count| thread_count("intra_op_thread_count", count))
        .transpose()?;
    let inter_op_threads = match config.integer_parameter("inter_op_thread_count")? {
        Some(count) => thread_count("inter_op_thread_count", count)?,
        None => 0,
    };
    let mut session_entries = Vec::new();
    let mut run_entries = Vec::new();
    for name in config.parameter_names() {
        let entries = match name.split_once('.') {
            // ONNX Runtime's own keys: those of sessions begin with session., ep. or optimization.,
            // those of runs with memory.
            Some(("session" | "optimization" | "ep", _)) => &mut session_entries,
            Some(("memory", _)) => &mut run_entries,
            _ => continue,
        };
        let value = config.parameter(name).unwrap_or_default();
        entries.push((c_string(name)?, c_string(value)?));
    }
    Ok(SessionOptions {
        log_id: c_string(model_name)?,
        optimization: graph_optimization(config),
        is_parallel: execution_mode == 1,
        intra_op_threads,
        inter_op_threads,
        has_memory_arena: config.boolean_parameter("enable_mem_arena")?,
        has_memory_pattern: config.boolean_parameter("enable_mem_pattern")?,
        session_entries,
        run_entries,
        custom_op_libraries: custom_op_libraries(directory, config),
        providers: providers(config)?,
        profile_prefix: config
            .parameter("profile_file_prefix")
            .map(c_string)
            .transpose()?,
    })
}

/// What upstream's backend says at verbose level 1 of the parameters that become options of ONNX
/// Runtime.
pub fn configured_lines(config: &ModelConfig) -> impl Iterator<Item = String> {
    config.parameter_names().filter_map(|name| {
        let value = config.parameter(name).unwrap_or_default();
        match name.split_once('.') {
            Some(("session" | "optimization" | "ep", _)) => {
                Some(format!("Configuring '{name}' to '{value}'"))
            }
            Some(("memory", _)) => Some(format!("Configuring {name} to {value}")),
            _ if matches!(name, "enable_mem_arena" | "enable_mem_pattern") => {
                Some(format!("Configuring {name} to {value}"))
            }
            _ => None,
        }
    })
}

/// Upstream's levels: -1 basic, 1 extended, 2 none, anything else all.
fn graph_optimization(config: &ModelConfig) -> GraphOptimization {
    let level = config.json().pointer("/optimization/graph/level");
    match level.and_then(Value::as_i64) {
        Some(-1) => GraphOptimization::Basic,
        Some(1) => GraphOptimization::Extended,
        Some(2) => GraphOptimization::None,
        _ => GraphOptimization::All,
    }
}

/// The accelerators of CPU instances. What is set for a provider is handed to it, which knows its
/// options; upstream hands nothing over.
fn providers(config: &ModelConfig) -> Result<Vec<Provider>, Error> {
    let accelerators = config
        .json()
        .pointer("/optimization/execution_accelerators/cpu_execution_accelerator")
        .and_then(Value::as_array);
    accelerators.into_iter().flatten().map(provider).collect()
}

fn provider(accelerator: &Value) -> Result<Provider, Error> {
    let name = accelerator.get("name").and_then(Value::as_str);
    let name = name.unwrap_or_default();
    if name != "openvino" {
        return Err(Error::invalid(format!(
            "unknown Execution Accelerator '{name}' is requested"
        )));
    }
    let mut entries = Vec::new();
    let parameters = accelerator.get("parameters").and_then(Value::as_object);
    for (key, value) in parameters.into_iter().flatten() {
        entries.push((
            c_string(key)?,
            c_string(value.as_str().unwrap_or_default())?,
        ));
    }
    if !entries.iter().any(|(key, _)| key == c"device_type") {
        entries.push((c"device_type".to_owned(), c"CPU".to_owned()));
    }
    Ok(Provider {
        name: c"OpenVINO".to_owned(),
        entries,
    })
}

/// Libraries of custom operators: files in the model's folder, or else what the loader of libraries
/// finds by the name, which is all that upstream looks for.
fn custom_op_libraries(directory: &Path, config: &ModelConfig) -> Vec<PathBuf> {
    config
        .json()
        .pointer("/model_operations/op_library_filename")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|name| match directory.join(name) {
            beside if beside.is_file() => beside,
            _ => PathBuf::from(name),
        })
        .collect()
}

fn thread_count(name: &str, count: i64) -> Result<i32, Error> {
    i32::try_from(count)
        .ok()
        .filter(|&count| count >= 0)
        .ok_or_else(|| Error::invalid(format!("parameter '{name}' cannot be {count}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(json: &str) -> Result<SessionOptions, Error> {
        let config = ModelConfig::parse(json.as_bytes())?;
        session_options("m", Path::new("/models/m"), &config)
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
        let options = options(&parameters(&[
            ("intra_op_thread_count", "3"),
            ("inter_op_thread_count", "2"),
            ("execution_mode", "1"),
            ("enable_mem_arena", "0"),
            ("enable_mem_pattern", "true"),
            ("session.use_device_allocator_for_initializers", "1"),
            ("memory.enable_memory_arena_shrinkage", "cpu:0"),
            ("someone.else", "x"),
        ]))
        .unwrap();
        assert_eq!(options.intra_op_threads, Some(3));
        assert_eq!(options.inter_op_threads, 2);
        assert!(options.is_parallel);
        assert_eq!(options.has_memory_arena, Some(false));
        assert_eq!(options.has_memory_pattern, Some(true));
        assert_eq!(
            options.session_entries,
            [(
                c"session.use_device_allocator_for_initializers".to_owned(),
                c"1".to_owned()
            )]
        );
        assert_eq!(
            options.run_entries,
            [(
                c"memory.enable_memory_arena_shrinkage".to_owned(),
                c"cpu:0".to_owned()
            )]
        );
    }

    #[test]
    fn says_what_is_configured() {
        let json = parameters(&[
            ("enable_mem_arena", "1"),
            ("session.intra_op.allow_spinning", "0"),
            ("memory.enable_memory_arena_shrinkage", "cpu:0"),
            ("someone.else", "x"),
        ]);
        let config = ModelConfig::parse(json.as_bytes()).unwrap();
        let mut lines: Vec<_> = configured_lines(&config).collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "Configuring 'session.intra_op.allow_spinning' to '0'",
                "Configuring enable_mem_arena to 1",
                "Configuring memory.enable_memory_arena_shrinkage to cpu:0",
            ]
        );
    }

    #[test]
    fn refuses_values_that_no_option_has() {
        for (name, value) in [
            ("execution_mode", "2"),
            ("intra_op_thread_count", "-1"),
            ("intra_op_thread_count", "many"),
            ("inter_op_thread_count", "99999999999"),
            ("enable_mem_arena", "perhaps"),
        ] {
            assert!(options(&parameters(&[(name, value)])).is_err(), "{name}");
        }
    }

    #[test]
    fn reads_accelerators() {
        let accelerated = |list: &str| {
            options(&format!(
                r#"{{"optimization": {{"execution_accelerators":
                {{"cpu_execution_accelerator": [{list}]}}}}}}"#
            ))
        };
        for list in [
            r#"{"name": "tensorrt"}"#,
            r#"{"name": "openvino"}, {"name": "tensorrt"}"#,
        ] {
            assert_eq!(
                accelerated(list).unwrap_err().message(),
                "unknown Execution Accelerator 'tensorrt' is requested"
            );
        }
        let entries = |list: &str| accelerated(list).unwrap().providers.remove(0).entries;
        let device = (c"device_type".to_owned(), c"CPU".to_owned());
        assert_eq!(entries(r#"{"name": "openvino"}"#), [device]);
        assert_eq!(
            entries(
                r#"{"name": "openvino", "parameters": {"cache_dir": "/c", "device_type": "AUTO"}}"#
            ),
            [
                (c"cache_dir".to_owned(), c"/c".to_owned()),
                (c"device_type".to_owned(), c"AUTO".to_owned()),
            ]
        );
        assert_eq!(accelerated("").unwrap().providers, []);
    }

    #[test]
    fn maps_graph_levels_as_upstream_does() {
        for (level, expected) in [
            (-1, GraphOptimization::Basic),
            (0, GraphOptimization::All),
            (1, GraphOptimization::Extended),
            (2, GraphOptimization::None),
            (7, GraphOptimization::All),
        ] {
            let json = format!(r#"{{"optimization": {{"graph": {{"level": {level}}}}}}}"#);
            assert_eq!(options(&json).unwrap().optimization, expected, "{level}");
        }
        assert_eq!(options("{}").unwrap().optimization, GraphOptimization::All);
    }

    #[test]
    fn finds_custom_operators_in_the_models_folder() {
        // The folder of this crate, which has a file of the first name.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let json = r#"{"model_operations": {"op_library_filename": [
            "Cargo.toml", "libmore.so", "/opt/libmore.so"]}}"#;
        let config = ModelConfig::parse(json.as_bytes()).unwrap();
        assert_eq!(
            custom_op_libraries(folder, &config),
            [
                folder.join("Cargo.toml"),
                PathBuf::from("libmore.so"),
                PathBuf::from("/opt/libmore.so")
            ]
        );
    }
}
