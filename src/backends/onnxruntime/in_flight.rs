//! Whether instances on GPUs leave their runs on their streams, as far as the configuration tells.

use conch_backend_sdk as sdk;
use sdk::engine::InFlightDepth;
use sdk::{Error, ModelConfig};

use crate::accelerators::Accelerators;
use crate::ort::SessionOptions;

/// While one batch is computed, the next is brought, or the last taken away.
const DEPTH_DEFAULT: usize = 2;

/// Key of a run that gives memory of arenas back, which its kernels may still use.
const SHRINKAGE: &str = "memory.enable_memory_arena_shrinkage";

/// How many batches a model's instances on GPUs keep in flight.
///
/// # Errors
/// What the configuration has wrong.
pub fn depth(
    config: &ModelConfig,
    options: &SessionOptions,
    accelerators: &Accelerators,
) -> Result<InFlightDepth, Error> {
    let depth = InFlightDepth::of(config, DEPTH_DEFAULT, |_| true)?;
    Ok(depth.unless(obstacle(config, options, accelerators)))
}

fn obstacle(
    config: &ModelConfig,
    options: &SessionOptions,
    accelerators: &Accelerators,
) -> Option<String> {
    if accelerators.has_cuda_graphs() {
        return Some("it replays CUDA graphs, each on memory of its own".to_owned());
    }
    if accelerators.copies_on_other_streams() {
        return Some("do_copy_in_default_stream is 0: copies have other streams".to_owned());
    }
    if !options.providers.is_empty() {
        return Some("a cpu_execution_accelerator has a part in it".to_owned());
    }
    let shrinkage = config.parameter(SHRINKAGE).unwrap_or_default();
    (!shrinkage.is_empty()).then(|| format!("{SHRINKAGE} gives memory back after each run"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accelerators::accelerators;
    use crate::settings::session_options;

    #[test]
    fn what_is_in_the_way() {
        let accelerator = |kind: &str, text: &str| {
            format!(r#"{{"optimization": {{"execution_accelerators": {{"{kind}": [{text}]}}}}}}"#)
        };
        let cuda = |key: &str, value: &str| {
            let text = format!(r#"{{"name": "cuda", "parameters": {{"{key}": "{value}"}}}}"#);
            accelerator("gpu_execution_accelerator", &text)
        };
        let shrinks = |value: &str| {
            format!(r#"{{"parameters": {{"{SHRINKAGE}": {{"string_value": "{value}"}}}}}}"#)
        };
        for (json, expected) in [
            ("{}".to_owned(), None),
            (cuda("prefer_nhwc", "1"), None),
            (cuda("enable_cuda_graph", "0"), None),
            (
                cuda("enable_cuda_graph", "1"),
                Some("it replays CUDA graphs"),
            ),
            (cuda("do_copy_in_default_stream", "1"), None),
            (
                cuda("do_copy_in_default_stream", "0"),
                Some("do_copy_in_default_stream is 0"),
            ),
            (shrinks(""), None),
            (shrinks("gpu:0"), Some(SHRINKAGE)),
            (
                accelerator("cpu_execution_accelerator", r#"{"name": "openvino"}"#),
                Some("a cpu_execution_accelerator"),
            ),
        ] {
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            let options = session_options("m", std::path::Path::new("/"), &config).unwrap();
            let found = depth(&config, &options, &accelerators(&config).unwrap()).unwrap();
            match (found, expected) {
                (InFlightDepth::UpTo(2), None) => {}
                (InFlightDepth::Blocking(reason), Some(expected)) => {
                    assert!(reason.starts_with(expected), "{reason}");
                }
                (found, _) => panic!("{json}: {found:?}"),
            }
        }
    }
}
