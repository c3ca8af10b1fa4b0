//! Parameters of a model's configuration, under the names that Triton's backend gave them.

use std::sync::{Mutex, PoisonError};

use conch_backend_sdk as sdk;
use sdk::{Error, ModelConfig};

use crate::libtorch::{RunOptions, Torch};

/// Parameters that only concern GPUs.
const GPU_PARAMETERS: [&str; 2] = ["DISABLE_CUDNN", "ENABLE_CACHE_CLEANING"];

/// Parameters of the executor of TorchScript, which compiled models do without.
const SCRIPT_PARAMETERS: [&str; 6] = [
    "DISABLE_OPTIMIZED_EXECUTION",
    "INFERENCE_MODE",
    "ENABLE_TENSOR_FUSER",
    "ENABLE_JIT_PROFILING",
    "ENABLE_JIT_EXECUTOR",
    "INTER_OP_THREAD_COUNT",
];

/// Parameters of upstream's way to serve models written in Python, which is the python backend's
/// here.
const PYTHON_PARAMETERS: [&str; 3] = [
    "NUM_THREADS",
    "NUM_INTEROP_THREADS",
    "TORCH_COMPILE_OPTIONAL_PARAMETERS",
];

/// How a model is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub options: RunOptions,
    /// Instances share one copy of the model.
    pub share_weights: bool,
    /// Threads within an operator; `None`: the instance's share of the CPUs.
    pub intra_op_threads: Option<i32>,
    /// Threads for `torch.jit.fork`, of which the process has one pool.
    pub inter_op_threads: Option<i32>,
}

impl Settings {
    /// # Errors
    /// `InvalidArgument` if a value is none that the parameter can have.
    pub fn read(config: &ModelConfig) -> Result<Self, Error> {
        let flag = |name| config.boolean_parameter(name);
        Ok(Settings {
            options: RunOptions {
                inference_mode: flag("INFERENCE_MODE")?.unwrap_or(true),
                optimized_execution: !flag("DISABLE_OPTIMIZED_EXECUTION")?.unwrap_or(false),
                jit_profiling: flag("ENABLE_JIT_PROFILING")?,
                jit_executor: flag("ENABLE_JIT_EXECUTOR")?,
                tensor_fuser: flag("ENABLE_TENSOR_FUSER")?,
                cudnn: flag("DISABLE_CUDNN")?.map(|is_off| !is_off),
                cleans_cache: flag("ENABLE_CACHE_CLEANING")?.unwrap_or(false),
            },
            share_weights: flag("ENABLE_WEIGHT_SHARING")?.unwrap_or(false),
            intra_op_threads: thread_count(config, "INTRA_OP_THREAD_COUNT")?,
            inter_op_threads: thread_count(config, "INTER_OP_THREAD_COUNT")?,
        })
    }

    /// Sets the size of the process's pool for `torch.jit.fork`, if this model says one. The first
    /// model that does decides.
    ///
    /// # Errors
    /// `Unavailable` if there is no shim.
    pub fn apply_to_process(&self, torch: &Torch, model_name: &str) -> Result<(), Error> {
        static DECIDED: Mutex<Option<i32>> = Mutex::new(None);
        let Some(count) = self.inter_op_threads else {
            return Ok(());
        };
        let mut decided = DECIDED.lock().unwrap_or_else(PoisonError::into_inner);
        match *decided {
            Some(other) if other == count => Ok(()),
            Some(other) => {
                sdk::warning!(
                    "parameter 'INTER_OP_THREAD_COUNT' of model '{model_name}' is ignored: another \
                     model set the pool of the process to {other} threads"
                );
                Ok(())
            }
            None => {
                if let Err(error) = torch.set_interop_threads(count) {
                    sdk::warning!(
                        "parameter 'INTER_OP_THREAD_COUNT' of model '{model_name}' is ignored: {}",
                        error.message()
                    );
                }
                *decided = Some(count);
                Ok(())
            }
        }
    }
}

/// Parameters in the configuration that have no effect here, and why.
pub fn ineffective_parameters(
    config: &ModelConfig,
    is_compiled: bool,
    is_on_gpus: bool,
) -> Vec<(&'static str, &'static str)> {
    let script: &[_] = if is_compiled { &SCRIPT_PARAMETERS } else { &[] };
    let gpu: &[_] = if is_on_gpus { &[] } else { &GPU_PARAMETERS };
    let reasons = [
        (gpu, "has no effect on CPU instances"),
        (script, "has no effect on models compiled by AOTInductor"),
        (
            &PYTHON_PARAMETERS[..],
            "is one of models written in Python, which the python backend serves",
        ),
    ];
    reasons
        .into_iter()
        .flat_map(|(names, reason)| names.iter().map(move |&name| (name, reason)))
        .filter(|(name, _)| config.parameter(name).is_some())
        .collect()
}

/// A number of threads; what is not above 0 leaves the choice here, as it does upstream.
fn thread_count(config: &ModelConfig, name: &str) -> Result<Option<i32>, Error> {
    let Some(count) = config.integer_parameter(name)? else {
        return Ok(None);
    };
    let count = i32::try_from(count)
        .map_err(|_| Error::invalid(format!("parameter '{name}' cannot be {count}")))?;
    Ok((count > 0).then_some(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(parameters: &[(&str, &str)]) -> ModelConfig {
        let entries: Vec<_> = parameters
            .iter()
            .map(|(name, value)| format!(r#""{name}": {{"string_value": "{value}"}}"#))
            .collect();
        let text = format!(r#"{{"parameters": {{{}}}}}"#, entries.join(", "));
        ModelConfig::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn reads_parameters() {
        let defaults = Settings::read(&config(&[])).unwrap();
        assert_eq!(
            defaults,
            Settings {
                options: RunOptions {
                    inference_mode: true,
                    optimized_execution: true,
                    jit_profiling: None,
                    jit_executor: None,
                    tensor_fuser: None,
                    cudnn: None,
                    cleans_cache: false,
                },
                share_weights: false,
                intra_op_threads: None,
                inter_op_threads: None,
            }
        );
        let all = Settings::read(&config(&[
            ("DISABLE_OPTIMIZED_EXECUTION", "true"),
            ("INFERENCE_MODE", "false"),
            ("ENABLE_JIT_PROFILING", "0"),
            ("ENABLE_JIT_EXECUTOR", "1"),
            ("ENABLE_TENSOR_FUSER", "false"),
            ("DISABLE_CUDNN", "true"),
            ("ENABLE_CACHE_CLEANING", "1"),
            ("ENABLE_WEIGHT_SHARING", "true"),
            ("INTRA_OP_THREAD_COUNT", "3"),
            ("INTER_OP_THREAD_COUNT", "-1"),
        ]))
        .unwrap();
        assert_eq!(
            all,
            Settings {
                options: RunOptions {
                    inference_mode: false,
                    optimized_execution: false,
                    jit_profiling: Some(false),
                    jit_executor: Some(true),
                    tensor_fuser: Some(false),
                    cudnn: Some(false),
                    cleans_cache: true,
                },
                share_weights: true,
                intra_op_threads: Some(3),
                inter_op_threads: None,
            }
        );
    }

    #[test]
    fn refuses_values_that_there_are_not() {
        for (name, value) in [
            ("INFERENCE_MODE", "perhaps"),
            ("DISABLE_CUDNN", "2"),
            ("INTRA_OP_THREAD_COUNT", "x"),
            ("INTRA_OP_THREAD_COUNT", "99999999999"),
        ] {
            assert!(
                Settings::read(&config(&[(name, value)])).is_err(),
                "{name}={value}"
            );
        }
    }

    #[test]
    fn tells_what_has_no_effect() {
        let config = config(&[
            ("INFERENCE_MODE", "true"),
            ("DISABLE_CUDNN", "true"),
            ("NUM_THREADS", "4"),
        ]);
        let names = |is_compiled, is_on_gpus| -> Vec<_> {
            let found = ineffective_parameters(&config, is_compiled, is_on_gpus);
            found.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(false, false), ["DISABLE_CUDNN", "NUM_THREADS"]);
        assert_eq!(names(false, true), ["NUM_THREADS"]);
        assert_eq!(
            names(true, false),
            ["DISABLE_CUDNN", "INFERENCE_MODE", "NUM_THREADS"]
        );
    }
}
