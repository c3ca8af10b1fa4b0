//! From the message to [`ResolvedConfig`]: the one place where a configuration becomes facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_proto::inference::model_config::SchedulingChoice;
use conch_proto::inference::model_instance_group::Kind;
use conch_proto::inference::model_instance_group::secondary_device::SecondaryDeviceKind;
use conch_proto::inference::model_version_policy::PolicyChoice;
use conch_proto::inference::{
    self, ModelConfig, ModelDynamicBatching, ModelInstanceGroup, ModelQueuePolicy,
};

use crate::model::{BatchInput, BatchInputKind, BatchOutput};
use crate::sequence::sequence_batching;
use crate::{
    ConfigError, DataType, DynamicBatching, InstanceGroup, InstanceKind, OwnParameters,
    QueuePolicy, RateLimit, RateResource, ResolvedConfig, Scheduling, TensorSpec, TimeoutAction,
    VersionPolicy, to_json, validate, validate_io,
};

impl ResolvedConfig {
    /// The facts of a complete configuration: normalised, with resolved instance groups.
    ///
    /// # Errors
    /// Every rule of [`validate`] and [`validate_io`].
    pub fn from_message(message: ModelConfig) -> Result<ResolvedConfig, ConfigError> {
        validate(&message)?;
        validate_io(&message)?;
        let inputs = message
            .input
            .iter()
            .map(input_spec)
            .collect::<Result<_, _>>()?;
        let outputs = message
            .output
            .iter()
            .map(output_spec)
            .collect::<Result<_, _>>()?;
        let batch_inputs = message
            .batch_input
            .iter()
            .map(batch_input)
            .collect::<Result<_, _>>()?;
        let batch_outputs = message.batch_output.iter().map(batch_output).collect();
        Ok(ResolvedConfig {
            inputs,
            outputs,
            batch_inputs,
            batch_outputs,
            ..ResolvedConfig::without_tensors(message)?
        })
    }

    /// The facts of a configuration whose inputs and outputs a backend may still complete: those
    /// that are not valid yet are left out of `inputs` and `outputs`, though not of the message; so
    /// are the batch tensors.
    ///
    /// # Errors
    /// Every rule of [`validate`].
    pub fn from_partial(message: ModelConfig) -> Result<ResolvedConfig, ConfigError> {
        validate(&message)?;
        if validate_io(&message).is_ok() {
            return ResolvedConfig::from_message(message);
        }
        ResolvedConfig::without_tensors(message)
    }

    fn without_tensors(message: ModelConfig) -> Result<ResolvedConfig, ConfigError> {
        let parameters: BTreeMap<String, String> = message
            .parameters
            .iter()
            .map(|(key, value)| (key.clone(), value.string_value.clone()))
            .collect();
        let own = OwnParameters::read(&message.name, &parameters)?;
        Ok(ResolvedConfig {
            name: message.name.as_str().into(),
            platform: message.platform.as_str().into(),
            backend: message.backend.as_str().into(),
            runtime: message.runtime.as_str().into(),
            default_model_filename: message.default_model_filename.as_str().into(),
            max_batch_size: u32::try_from(message.max_batch_size)
                .expect("validate refuses a negative size"),
            inputs: Vec::new(),
            outputs: Vec::new(),
            scheduling: scheduling(&message, &own),
            own,
            version_policy: version_policy(&message),
            instance_groups: message
                .instance_group
                .iter()
                .map(|group| instance_group(&message.name, group))
                .collect::<Result<_, _>>()?,
            is_decoupled: message
                .model_transaction_policy
                .as_ref()
                .is_some_and(|policy| policy.decoupled),
            has_response_cache: message
                .response_cache
                .as_ref()
                .is_some_and(|cache| cache.enable),
            batch_inputs: Vec::new(),
            batch_outputs: Vec::new(),
            parameters,
            metric_tags: message.metric_tags.clone(),
            json: to_json(&message).into(),
            message: Arc::new(message),
        })
    }
}

fn data_type(number: i32, tensor: &str) -> Result<DataType, ConfigError> {
    u32::try_from(number)
        .ok()
        .and_then(DataType::from_number)
        .ok_or_else(|| {
            ConfigError::invalid(format!("tensor '{tensor}' has unknown data type {number}"))
        })
}

fn input_spec(input: &inference::ModelInput) -> Result<TensorSpec, ConfigError> {
    Ok(TensorSpec {
        name: input.name.as_str().into(),
        data_type: data_type(input.data_type, &input.name)?,
        dims: input.dims.clone(),
        reshape: input.reshape.as_ref().map(|reshape| reshape.shape.clone()),
        is_shape_tensor: input.is_shape_tensor,
        allow_ragged_batch: input.allow_ragged_batch,
        is_optional: input.optional,
        is_non_linear_format_io: input.is_non_linear_format_io,
        label_filename: Box::default(),
    })
}

fn output_spec(output: &inference::ModelOutput) -> Result<TensorSpec, ConfigError> {
    Ok(TensorSpec {
        name: output.name.as_str().into(),
        data_type: data_type(output.data_type, &output.name)?,
        dims: output.dims.clone(),
        reshape: output.reshape.as_ref().map(|reshape| reshape.shape.clone()),
        is_shape_tensor: output.is_shape_tensor,
        allow_ragged_batch: false,
        is_optional: false,
        is_non_linear_format_io: output.is_non_linear_format_io,
        label_filename: output.label_filename.as_str().into(),
    })
}

fn batch_input(batch: &inference::BatchInput) -> Result<BatchInput, ConfigError> {
    use inference::batch_input::Kind;
    Ok(BatchInput {
        kind: match batch.kind() {
            Kind::BatchElementCount => BatchInputKind::ElementCount,
            Kind::BatchAccumulatedElementCount => BatchInputKind::AccumulatedElementCount,
            Kind::BatchAccumulatedElementCountWithZero => {
                BatchInputKind::AccumulatedElementCountWithZero
            }
            Kind::BatchMaxElementCountAsShape => BatchInputKind::MaxElementCountAsShape,
            Kind::BatchItemShape => BatchInputKind::ItemShape,
            Kind::BatchItemShapeFlatten => BatchInputKind::ItemShapeFlatten,
        },
        target_names: batch.target_name.clone(),
        data_type: data_type(batch.data_type, "batch input")?,
        source_input: only(&batch.source_input),
    })
}

fn batch_output(batch: &inference::BatchOutput) -> BatchOutput {
    BatchOutput {
        target_names: batch.target_name.clone(),
        source_input: only(&batch.source_input),
    }
}

fn only(sources: &[String]) -> String {
    sources
        .first()
        .cloned()
        .expect("validate_io wants exactly one source")
}

fn scheduling(message: &ModelConfig, own: &OwnParameters) -> Scheduling {
    match &message.scheduling_choice {
        None => Scheduling::Default,
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            Scheduling::Dynamic(dynamic_batching(batching, own))
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            Scheduling::Sequence(Box::new(sequence_batching(message, batching, own)))
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) => Scheduling::Ensemble,
    }
}

fn dynamic_batching(batching: &ModelDynamicBatching, own: &OwnParameters) -> DynamicBatching {
    let mut preferred_batch_sizes: Vec<u32> = batching
        .preferred_batch_size
        .iter()
        .map(|size| u32::try_from(*size).expect("validate refuses a size that is not positive"))
        .collect();
    preferred_batch_sizes.sort_unstable();
    preferred_batch_sizes.dedup();
    DynamicBatching {
        preferred_batch_sizes,
        max_queue_delay_us: batching.max_queue_delay_microseconds,
        is_preserving_order: batching.preserve_ordering,
        is_by_deadline: own.is_by_deadline,
        priority_levels: batching.priority_levels,
        default_priority_level: batching.default_priority_level,
        default_policy: batching
            .default_queue_policy
            .as_ref()
            .map(|policy| queue_policy(policy, own))
            .unwrap_or_default(),
        priority_policies: batching
            .priority_queue_policy
            .iter()
            .map(|(level, policy)| (*level, queue_policy(policy, own)))
            .collect(),
    }
}

fn queue_policy(policy: &ModelQueuePolicy, own: &OwnParameters) -> QueuePolicy {
    // Upstream lets a request only lower its policy's timeout, and there is none to lower.
    let lowers_nothing = policy.default_timeout_microseconds == 0 && !own.has_request_timeouts;
    QueuePolicy {
        timeout_action: match policy.timeout_action() {
            inference::model_queue_policy::TimeoutAction::Reject => TimeoutAction::Reject,
            inference::model_queue_policy::TimeoutAction::Delay => TimeoutAction::Delay,
        },
        default_timeout_us: policy.default_timeout_microseconds,
        allow_timeout_override: policy.allow_timeout_override && !lowers_nothing,
        queue_size_max: policy.max_queue_size,
    }
}

fn version_policy(message: &ModelConfig) -> VersionPolicy {
    match message
        .version_policy
        .as_ref()
        .and_then(|policy| policy.policy_choice.as_ref())
    {
        Some(PolicyChoice::Latest(latest)) => VersionPolicy::Latest(latest.num_versions),
        Some(PolicyChoice::Specific(specific)) => {
            VersionPolicy::Specific(specific.versions.clone())
        }
        // A policy without a choice selects every version, as upstream.
        Some(PolicyChoice::All(_)) | None => VersionPolicy::All,
    }
}

fn rate_limit(limiter: &inference::ModelRateLimiter) -> RateLimit {
    let resource = |resource: &inference::model_rate_limiter::Resource| RateResource {
        name: resource.name.as_str().into(),
        is_global: resource.global,
        count: resource.count,
    };
    RateLimit {
        resources: limiter.resources.iter().map(resource).collect(),
        priority: limiter.priority,
    }
}

fn instance_group(model: &str, group: &ModelInstanceGroup) -> Result<InstanceGroup, ConfigError> {
    let kind = match Kind::try_from(group.kind) {
        Ok(Kind::Cpu) => InstanceKind::Cpu,
        Ok(Kind::Gpu) => InstanceKind::Gpu,
        Ok(Kind::Model) => InstanceKind::Model,
        Ok(Kind::Auto) | Err(_) => {
            return Err(ConfigError::internal(format!(
                "instance group {} of model {model} has unexpected kind KIND_AUTO",
                group.name
            )));
        }
    };
    let secondary_device = |device: &inference::model_instance_group::SecondaryDevice| {
        let kind = SecondaryDeviceKind::try_from(device.kind).unwrap_or_default();
        (kind.as_str_name().to_owned(), device.device_id)
    };
    Ok(InstanceGroup {
        name: group.name.as_str().into(),
        kind,
        count: u32::try_from(group.count).unwrap_or_default(),
        gpus: group.gpus.clone(),
        is_passive: group.passive,
        profiles: group.profile.clone(),
        host_policy: group.host_policy.as_str().into(),
        secondary_devices: group
            .secondary_devices
            .iter()
            .map(secondary_device)
            .collect(),
        rate_limit: group
            .rate_limiter
            .as_ref()
            .map(rate_limit)
            .unwrap_or_default(),
    })
}
