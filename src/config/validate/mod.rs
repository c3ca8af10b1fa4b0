//! Upstream's rules for a model configuration, in upstream's words (core, `model_config_utils.cc`).
//!
//! Two halves, as upstream has them: [`validate`] holds what must be true before a backend sees the
//! model; [`validate_io`] holds what a backend may still complete.

mod ensemble;
mod io;
mod sequence;

use conch_proto::inference::model_config::SchedulingChoice;
use conch_proto::inference::model_metrics::metric_control::MetricOptions;
use conch_proto::inference::model_queue_policy::TimeoutAction;
use conch_proto::inference::{ModelConfig, ModelDynamicBatching, ModelMetrics, ModelQueuePolicy};

use crate::ConfigError;

pub use io::validate_io;

/// Checks everything but inputs, outputs and instance groups. The message must be normalised.
///
/// # Errors
/// `InvalidArg`, naming the model.
pub fn validate(config: &ModelConfig) -> Result<(), ConfigError> {
    let name = &config.name;
    if name.is_empty() {
        return Err(ConfigError::invalid(
            "model configuration must specify 'name'",
        ));
    }
    validate_platform(config)?;
    if config.max_batch_size < 0 {
        return Err(ConfigError::invalid(format!(
            "'max_batch_size' must be non-negative value for {name}"
        )));
    }
    if config.version_policy.is_none() {
        return Err(ConfigError::invalid(format!(
            "must specify 'version policy' for {name}"
        )));
    }
    let has_cache = config
        .response_cache
        .as_ref()
        .is_some_and(|cache| cache.enable);
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => validate_dynamic(config, batching)?,
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            if has_cache {
                return Err(ConfigError::invalid(format!(
                    "Response Cache does not currently support model {name} with sequence batching \
                     scheduler. Please disable the response cache."
                )));
            }
            sequence::validate(config, batching)?;
        }
        Some(SchedulingChoice::EnsembleScheduling(ensembling)) => {
            ensemble::validate(config, ensembling)?
        }
        None => {}
    }
    let is_ensemble = matches!(
        config.scheduling_choice,
        Some(SchedulingChoice::EnsembleScheduling(_))
    );
    if !is_ensemble && config.platform == PLATFORM_ENSEMBLE {
        return Err(ConfigError::invalid(format!(
            "ensemble scheduling must be set for ensemble {name} whose platform is \
             {PLATFORM_ENSEMBLE}"
        )));
    }
    if has_cache
        && config
            .model_transaction_policy
            .as_ref()
            .is_some_and(|policy| policy.decoupled)
    {
        return Err(ConfigError::invalid(format!(
            "Response Cache does not currently support model {name} with 'decoupled' transaction \
             policy. Please disable the response cache."
        )));
    }
    config
        .model_metrics
        .as_ref()
        .map_or(Ok(()), validate_metrics)
}

/// Checks that the model is called as its directory is.
///
/// # Errors
/// `InvalidArg` with both names.
pub fn validate_name(config: &ModelConfig, directory_name: &str) -> Result<(), ConfigError> {
    if config.name == directory_name {
        return Ok(());
    }
    Err(ConfigError::invalid(format!(
        "unexpected directory name '{directory_name}' for model '{}', directory name must equal \
         model name",
        config.name
    )))
}

fn validate_platform(config: &ModelConfig) -> Result<(), ConfigError> {
    let ModelConfig {
        name,
        platform,
        backend,
        ..
    } = config;
    if backend.is_empty() {
        if platform != PLATFORM_ENSEMBLE {
            return Err(ConfigError::invalid(format!(
                "unexpected platform type '{platform}' for {name}"
            )));
        }
    } else if platform == PLATFORM_ENSEMBLE {
        return Err(ConfigError::invalid(format!(
            "Ensemble model '{name}' must have platform type '{platform}' and empty backend type"
        )));
    }
    let allowed: &[&str] = match backend.as_str() {
        "tensorflow" => &["tensorflow_graphdef", "tensorflow_savedmodel"],
        "tensorrt" => &[PLATFORM_TENSORRT],
        "onnxruntime" => &["onnxruntime_onnx"],
        // `torch_aoti` is the second platform of this backend. Upstream's own table forgets it and
        // refuses every such model.
        "pytorch" => &["pytorch_libtorch", "torch_aoti"],
        // Any platform goes with a backend that the server does not know.
        _ => return Ok(()),
    };
    if allowed.contains(&platform.as_str()) {
        return Ok(());
    }
    Err(ConfigError::invalid(format!(
        "unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"
    )))
}

fn validate_dynamic(
    config: &ModelConfig,
    batching: &ModelDynamicBatching,
) -> Result<(), ConfigError> {
    let name = &config.name;
    for size in &batching.preferred_batch_size {
        if *size <= 0 {
            return Err(ConfigError::invalid(format!(
                "dynamic batching preferred size must be positive for {name}"
            )));
        }
        if *size > config.max_batch_size {
            return Err(ConfigError::invalid(format!(
                "dynamic batching preferred size must be <= max batch size for {name}"
            )));
        }
    }
    let levels = batching.priority_levels;
    if levels != 0 {
        if !(1..=levels).contains(&batching.default_priority_level) {
            return Err(ConfigError::invalid(format!(
                "default priority level must be in range [1, {levels}] for {name}"
            )));
        }
        if batching
            .priority_queue_policy
            .keys()
            .any(|level| !(1..=levels).contains(level))
        {
            return Err(ConfigError::invalid(format!(
                "priority queue policy must have priority level in range [1, {levels}] for {name}"
            )));
        }
    }
    if batching.preserve_ordering {
        if levels > 1 {
            return Err(ConfigError::invalid(format!(
                "Only one priority level is allowed when 'preserve_ordering' is true for {name}"
            )));
        }
        let mut policies = batching
            .default_queue_policy
            .iter()
            .chain(batching.priority_queue_policy.values());
        let delays = |policy: &ModelQueuePolicy| {
            policy.default_timeout_microseconds != 0
                && policy.timeout_action() == TimeoutAction::Delay
        };
        if policies.any(delays) {
            return Err(ConfigError::invalid(format!(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is \
                 true for {name}"
            )));
        }
    }
    Ok(())
}

fn validate_metrics(metrics: &ModelMetrics) -> Result<(), ConfigError> {
    for control in &metrics.metric_control {
        let Some(identifier) = &control.metric_identifier else {
            return Err(ConfigError::invalid(
                "metric control must specify 'metric_identifier'",
            ));
        };
        if identifier.family.is_empty() {
            return Err(ConfigError::invalid(
                "metric identifier must specify non-empty 'family'",
            ));
        }
        let Some(MetricOptions::HistogramOptions(options)) = &control.metric_options else {
            return Err(ConfigError::invalid(
                "metric control must specify 'histogram_options'",
            ));
        };
        if options.buckets.is_empty() {
            return Err(ConfigError::invalid(
                "histogram options must specify non-empty 'buckets'",
            ));
        }
    }
    Ok(())
}

pub(crate) const PLATFORM_ENSEMBLE: &str = "ensemble";
pub(crate) const PLATFORM_TENSORRT: &str = "tensorrt_plan";

#[cfg(test)]
mod tests;
