//! Settings of instances on GPUs: the execution accelerators CUDA and TensorRT, under the names
//! that Triton's ONNX Runtime backend gave them.

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use conch_backend_sdk as sdk;
use sdk::engine::c_string;
use sdk::serde_json::{Map, Value};
use sdk::{DeviceBlocks, DeviceStream, Error, ModelConfig};

use crate::ort::{Entries, Gpu, GraphOptions};

/// What a model's configuration says of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accelerators {
    pub cuda: Entries,
    /// Where `tensorrt` is asked for.
    pub tensorrt: Option<Entries>,
}

impl Accelerators {
    /// A GPU for a session that only tells a signature.
    pub fn signature_gpu(&self, device: i32) -> Gpu {
        Gpu {
            device,
            stream: None,
            cuda: self.cuda.clone(),
            tensorrt: self.tensorrt.clone(),
            graphs: None,
        }
    }

    /// Whether runs are captured as CUDA graphs.
    pub fn has_cuda_graphs(&self) -> bool {
        let mut options = self.cuda.iter();
        options.any(|(key, value)| is_on(c"enable_cuda_graph", key, value))
    }

    /// Whether the provider CUDA may copy on streams of its own.
    pub fn copies_on_other_streams(&self) -> bool {
        let mut options = self.cuda.iter();
        let is_off = |value: &CStr| value.to_str().ok().and_then(as_boolean) == Some(false);
        options.any(|(key, value)| key.as_c_str() == c"do_copy_in_default_stream" && is_off(value))
    }

    /// The GPU of a session that enqueues on `stream`.
    ///
    /// # Errors
    /// What the configuration has wrong.
    pub fn gpu(&self, stream: &DeviceStream, config: &ModelConfig) -> Result<Gpu, Error> {
        let handle = stream.handle();
        let graphs = match self.has_cuda_graphs() {
            true => Some(GraphOptions {
                blocks: DeviceBlocks::of(stream),
                stream: handle.clone(),
                is_batching: config.max_batch_size() > 0,
                has_ragged_inputs: config.inputs()?.iter().any(|input| input.is_ragged),
            }),
            false => None,
        };
        Ok(Gpu {
            graphs,
            stream: Some(handle.clone()),
            ..self.signature_gpu(handle.device())
        })
    }
}

/// The type of a parameter's value, which is checked before a provider gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueType {
    Text,
    Boolean,
    Integer,
    Unsigned,
}

/// Parameters of the accelerator `tensorrt` beside `precision_mode`.
const TENSORRT_PARAMETERS: [(&str, ValueType); 31] = [
    ("max_workspace_size_bytes", ValueType::Unsigned),
    ("trt_max_partition_iterations", ValueType::Integer),
    ("trt_min_subgraph_size", ValueType::Integer),
    ("int8_calibration_table_name", ValueType::Text),
    ("int8_use_native_calibration_table", ValueType::Boolean),
    ("trt_dla_enable", ValueType::Boolean),
    ("trt_dla_core", ValueType::Integer),
    ("trt_engine_cache_enable", ValueType::Boolean),
    ("trt_engine_cache_path", ValueType::Text),
    ("trt_engine_cache_prefix", ValueType::Text),
    ("trt_dump_subgraphs", ValueType::Boolean),
    ("trt_force_sequential_engine_build", ValueType::Boolean),
    ("trt_context_memory_sharing_enable", ValueType::Boolean),
    ("trt_layer_norm_fp32_fallback", ValueType::Boolean),
    ("trt_timing_cache_enable", ValueType::Boolean),
    ("trt_timing_cache_path", ValueType::Text),
    ("trt_force_timing_cache", ValueType::Boolean),
    ("trt_detailed_build_log", ValueType::Boolean),
    ("trt_build_heuristics_enable", ValueType::Boolean),
    ("trt_sparsity_enable", ValueType::Boolean),
    ("trt_builder_optimization_level", ValueType::Integer),
    ("trt_auxiliary_streams", ValueType::Integer),
    ("trt_tactic_sources", ValueType::Text),
    ("trt_extra_plugin_lib_paths", ValueType::Text),
    ("trt_profile_min_shapes", ValueType::Text),
    ("trt_profile_max_shapes", ValueType::Text),
    ("trt_profile_opt_shapes", ValueType::Text),
    ("trt_cuda_graph_enable", ValueType::Boolean),
    ("trt_dump_ep_context_model", ValueType::Boolean),
    ("trt_ep_context_file_path", ValueType::Text),
    ("trt_ep_context_embed_mode", ValueType::Integer),
];

/// Options of the provider CUDA whose values upstream checks itself; the others are ONNX Runtime's
/// to refuse.
const CUDA_BOOLEANS: [&str; 3] = [
    "do_copy_in_default_stream",
    "use_ep_level_unified_stream",
    "enable_cuda_graph",
];

/// Values of options that configurations give by number, in the older way.
const ALGORITHM_SEARCHES: [&CStr; 3] = [c"EXHAUSTIVE", c"HEURISTIC", c"DEFAULT"];
const ARENA_STRATEGIES: [&CStr; 2] = [c"kNextPowerOfTwo", c"kSameAsRequested"];

/// Parameters of the model that are options of the provider CUDA: upstream's backend took them
/// before accelerators had any.
const CUDA_PARAMETERS: [&str; 4] = [
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
];

/// Reads the accelerators of instances on GPUs. A parameter of the model goes before the same
/// option of the accelerator `cuda`.
///
/// # Errors
/// `InvalidArgument` if an accelerator, a parameter or a value is none that there is.
pub fn accelerators(config: &ModelConfig) -> Result<Accelerators, Error> {
    let mut found = Accelerators::default();
    for accelerator in gpu_accelerators(config) {
        let name = accelerator.get("name").and_then(Value::as_str);
        let parameters = accelerator.get("parameters").and_then(Value::as_object);
        match name.unwrap_or_default() {
            "tensorrt" => found.tensorrt = Some(tensorrt_entries(parameters)?),
            "cuda" => found.cuda = cuda_entries(parameters)?,
            other => {
                return Err(Error::invalid(format!(
                    "unknown Execution Accelerator '{other}' is requested"
                )));
            }
        }
    }
    let mut options = found.tensorrt.iter().flatten();
    if options.any(|(key, value)| is_on(c"trt_cuda_graph_enable", key, value)) {
        return Err(Error::unsupported(
            "'trt_cuda_graph_enable' is not supported: a captured CUDA graph reads and writes the \
             addresses of its first run, and tensors of requests lie elsewhere each time; \
             'enable_cuda_graph' of the accelerator 'cuda' is",
        ));
    }
    for (key, value) in cuda_parameters(config)? {
        found.cuda.retain(|(known, _)| *known != key);
        found.cuda.push((key, value));
    }
    Ok(found)
}

/// Whether an option is the one that is `wanted`, and on.
fn is_on(wanted: &CStr, key: &CStr, value: &CStr) -> bool {
    key == wanted && value.to_str().ok().and_then(as_boolean) == Some(true)
}

/// Parameters and fields of the configuration that only concern instances on GPUs.
pub fn gpu_only_settings(config: &ModelConfig) -> impl Iterator<Item = &'static str> {
    let has_accelerators = gpu_accelerators(config).next().is_some();
    CUDA_PARAMETERS
        .into_iter()
        .filter(|name| config.parameter(name).is_some())
        .chain(has_accelerators.then_some("gpu_execution_accelerator"))
}

fn gpu_accelerators(config: &ModelConfig) -> impl Iterator<Item = &Value> {
    let list = config
        .json()
        .pointer("/optimization/execution_accelerators/gpu_execution_accelerator")
        .and_then(Value::as_array);
    list.into_iter().flatten()
}

fn tensorrt_entries(parameters: Option<&Map<String, Value>>) -> Result<Entries, Error> {
    let mut entries = Entries::new();
    for (name, value) in parameters.into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if name == "precision_mode" {
            entries.extend(precision(value)?.map(|key| (key.to_owned(), c"1".to_owned())));
            continue;
        }
        let mut known = TENSORRT_PARAMETERS.iter();
        let Some((_, value_type)) = known.find(|(known, _)| known == name) else {
            return Err(Error::invalid(format!(
                "unknown parameter '{name}' is provided for TensorRT Execution Accelerator"
            )));
        };
        value_type.check(value)?;
        if !value.is_empty() {
            entries.push((c_string(&tensorrt_key(name))?, c_string(value)?));
        }
    }
    Ok(entries)
}

/// ONNX Runtime's name of a parameter of the accelerator `tensorrt`.
fn tensorrt_key(parameter: &str) -> Cow<'_, str> {
    match parameter {
        "max_workspace_size_bytes" => Cow::Borrowed("trt_max_workspace_size"),
        name if name.starts_with("trt_") => Cow::Borrowed(name),
        name => Cow::Owned(format!("trt_{name}")),
    }
}

/// The option that a precision switches on; none: TensorRT's own, FP32.
fn precision(mode: &str) -> Result<Option<&'static CStr>, Error> {
    match mode {
        "FP32" => Ok(None),
        "FP16" => Ok(Some(c"trt_fp16_enable")),
        "BF16" => Ok(Some(c"trt_bf16_enable")),
        "INT8" => Ok(Some(c"trt_int8_enable")),
        other => Err(Error::invalid(format!(
            "unsupported precision mode '{other}' is requested"
        ))),
    }
}

fn cuda_entries(parameters: Option<&Map<String, Value>>) -> Result<Entries, Error> {
    let mut entries = Entries::new();
    for (name, value) in parameters.into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if CUDA_BOOLEANS.contains(&name.as_str()) {
            ValueType::Boolean.check(value)?;
        }
        if !value.is_empty() {
            entries.push((c_string(name)?, c_string(value)?));
        }
    }
    Ok(entries)
}

/// Options of the provider CUDA from parameters of the model.
fn cuda_parameters(config: &ModelConfig) -> Result<Entries, Error> {
    let mut entries = Entries::new();
    let mut add = |name: &str, value: CString| -> Result<(), Error> {
        entries.push((c_string(name)?, value));
        Ok(())
    };
    let numbered = [
        ("cudnn_conv_algo_search", &ALGORITHM_SEARCHES[..]),
        ("arena_extend_strategy", &ARENA_STRATEGIES[..]),
    ];
    for (name, values) in numbered {
        let Some(number) = config.integer_parameter(name)? else {
            continue;
        };
        let value = usize::try_from(number).ok();
        let value = value.and_then(|number| values.get(number)).ok_or_else(|| {
            Error::invalid(format!("unsupported {name} value '{number}' is requested"))
        })?;
        add(name, (*value).to_owned())?;
    }
    for name in ["gpu_mem_limit", "do_copy_in_default_stream"] {
        if let Some(value) = config.parameter(name) {
            add(name, c_string(value)?)?;
        }
    }
    Ok(entries)
}

impl ValueType {
    /// # Errors
    /// `InvalidArgument` in upstream's words.
    fn check(self, value: &str) -> Result<(), Error> {
        let (is_right, what) = match self {
            ValueType::Text => (true, ""),
            ValueType::Boolean => (as_boolean(value).is_some(), "boolean"),
            ValueType::Integer => (value.trim().parse::<i32>().is_ok(), "integral number"),
            ValueType::Unsigned => (
                value.trim().parse::<u64>().is_ok(),
                "unsigned long long integral number",
            ),
        };
        match is_right {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "failed to convert '{value}' to {what}"
            ))),
        }
    }
}

fn as_boolean(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Some(true),
        "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Accelerators, Error> {
        accelerators(&ModelConfig::parse(json.as_bytes())?)
    }

    fn accelerated(list: &str) -> Result<Accelerators, Error> {
        read(&format!(
            r#"{{"optimization": {{"execution_accelerators":
            {{"gpu_execution_accelerator": [{list}]}}}}}}"#
        ))
    }

    fn entries(list: &[(&str, &str)]) -> Entries {
        let owned = |text: &str| CString::new(text).unwrap();
        list.iter()
            .map(|(key, value)| (owned(key), owned(value)))
            .collect()
    }

    #[test]
    fn reads_tensorrt() {
        assert_eq!(accelerated("").unwrap(), Accelerators::default());
        let found = accelerated(r#"{"name": "tensorrt"}"#).unwrap();
        assert_eq!(found.tensorrt, Some(Entries::new()));
        for (mode, expected) in [
            ("FP32", &[][..]),
            ("FP16", &[("trt_fp16_enable", "1")]),
            ("BF16", &[("trt_bf16_enable", "1")]),
            ("INT8", &[("trt_int8_enable", "1")]),
        ] {
            let text =
                format!(r#"{{"name": "tensorrt", "parameters": {{"precision_mode": "{mode}"}}}}"#);
            assert_eq!(
                accelerated(&text).unwrap().tensorrt,
                Some(entries(expected))
            );
        }
        let found = accelerated(
            r#"{"name": "tensorrt", "parameters": {"max_workspace_size_bytes": "1073741824",
                "trt_engine_cache_enable": "On", "trt_engine_cache_path": "/c",
                "int8_calibration_table_name": "/t",
                "trt_profile_min_shapes": "X:1x3", "trt_timing_cache_path": ""}}"#,
        );
        assert_eq!(
            found.unwrap().tensorrt,
            Some(entries(&[
                ("trt_int8_calibration_table_name", "/t"),
                ("trt_max_workspace_size", "1073741824"),
                ("trt_engine_cache_enable", "On"),
                ("trt_engine_cache_path", "/c"),
                ("trt_profile_min_shapes", "X:1x3"),
            ]))
        );
    }

    #[test]
    fn refuses_in_upstreams_words() {
        for (parameter, value, expected) in [
            (
                "precision_mode",
                "FP8",
                "unsupported precision mode 'FP8' is requested",
            ),
            (
                "speed",
                "1",
                "unknown parameter 'speed' is provided for TensorRT Execution Accelerator",
            ),
            (
                "trt_dla_enable",
                "maybe",
                "failed to convert 'maybe' to boolean",
            ),
            (
                "trt_dla_core",
                "x",
                "failed to convert 'x' to integral number",
            ),
            (
                "max_workspace_size_bytes",
                "much",
                "failed to convert 'much' to unsigned long long integral number",
            ),
        ] {
            let text =
                format!(r#"{{"name": "tensorrt", "parameters": {{"{parameter}": "{value}"}}}}"#);
            assert_eq!(accelerated(&text).unwrap_err().message(), expected);
        }
        let graphs = |value: &str| {
            let text = r#"{"name": "tensorrt", "parameters": {"trt_cuda_graph_enable": "VALUE"}}"#;
            accelerated(&text.replace("VALUE", value))
        };
        assert!(graphs("0").is_ok());
        let refused = graphs("1").unwrap_err();
        assert!(
            refused
                .message()
                .starts_with("'trt_cuda_graph_enable' is not supported")
        );
        let refused = accelerated(r#"{"name": "abacus"}"#).unwrap_err();
        assert_eq!(
            refused.message(),
            "unknown Execution Accelerator 'abacus' is requested"
        );
    }

    #[test]
    fn reads_cuda_in_both_ways() {
        let found = accelerated(
            r#"{"name": "cuda", "parameters": {"cudnn_conv_use_max_workspace": "0",
                "use_ep_level_unified_stream": "1", "gpu_mem_limit": "5"}}"#,
        );
        assert_eq!(
            found.unwrap().cuda,
            entries(&[
                ("cudnn_conv_use_max_workspace", "0"),
                ("gpu_mem_limit", "5"),
                ("use_ep_level_unified_stream", "1"),
            ])
        );
        let found = read(
            r#"{"optimization": {"execution_accelerators": {"gpu_execution_accelerator": [
                {"name": "cuda",
                 "parameters": {"gpu_mem_limit": "5", "cudnn_conv1d_pad_to_nc1d": "1"}}]}},
            "parameters": {"cudnn_conv_algo_search": {"string_value": "1"},
                "gpu_mem_limit": {"string_value": "7"},
                "arena_extend_strategy": {"string_value": "1"},
                "do_copy_in_default_stream": {"string_value": "0"}}}"#,
        );
        assert_eq!(
            found.unwrap().cuda,
            entries(&[
                ("cudnn_conv1d_pad_to_nc1d", "1"),
                ("cudnn_conv_algo_search", "HEURISTIC"),
                ("arena_extend_strategy", "kSameAsRequested"),
                ("gpu_mem_limit", "7"),
                ("do_copy_in_default_stream", "0"),
            ])
        );
        for (name, value) in [
            ("cudnn_conv_algo_search", "3"),
            ("arena_extend_strategy", "-1"),
        ] {
            let text = format!(r#"{{"parameters": {{"{name}": {{"string_value": "{value}"}}}}}}"#);
            assert_eq!(
                read(&text).unwrap_err().message(),
                format!("unsupported {name} value '{value}' is requested")
            );
        }
        let refused = accelerated(
            r#"{"name": "cuda", "parameters": {"do_copy_in_default_stream": "perhaps"}}"#,
        );
        assert_eq!(
            refused.unwrap_err().message(),
            "failed to convert 'perhaps' to boolean"
        );
    }

    #[test]
    fn names_what_concerns_gpus_only() {
        let json = r#"{"parameters": {"gpu_mem_limit": {"string_value": "1"}},
            "optimization": {"execution_accelerators": {
                "gpu_execution_accelerator": [{"name": "tensorrt"}]}}}"#;
        let config = ModelConfig::parse(json.as_bytes()).unwrap();
        let names: Vec<_> = gpu_only_settings(&config).collect();
        assert_eq!(names, ["gpu_mem_limit", "gpu_execution_accelerator"]);
    }
}
