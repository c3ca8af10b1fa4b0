//! The validated facts of one model.

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_proto::inference::ModelConfig;

use crate::{DataType, DynamicBatching, OwnParameters, SequenceBatching};

/// A validated, normalised model configuration. Immutable; shared by every version loaded with it.
#[derive(Clone, Debug)]
pub struct ResolvedConfig {
    /// The whole message, normalised: what the config endpoints and the C API report.
    pub message: Arc<ModelConfig>,
    /// The message in its JSON form, made once: a request for the configuration only copies it.
    pub json: Arc<str>,
    pub name: Arc<str>,
    /// Empty unless the file names one.
    pub platform: Box<str>,
    pub backend: Box<str>,
    /// File name of the backend's library; empty: the usual one.
    pub runtime: Box<str>,
    /// File in the version directory; empty: the backend's own default.
    pub default_model_filename: Box<str>,
    /// 0: the model has no batch dimension.
    pub max_batch_size: u32,
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    pub scheduling: Scheduling,
    pub version_policy: VersionPolicy,
    pub instance_groups: Vec<InstanceGroup>,
    pub is_decoupled: bool,
    /// The model wants its responses cached.
    pub has_response_cache: bool,
    /// Tensors that the backend derives from a batch and feeds to the model; no request carries
    /// them.
    pub batch_inputs: Vec<BatchInput>,
    /// Outputs that the backend splits by another tensor's shapes.
    pub batch_outputs: Vec<BatchOutput>,
    /// For the backend, opaque to the server but for a few names.
    pub parameters: BTreeMap<String, String>,
    /// Those that mean something to this server.
    pub own: OwnParameters,
    /// Labels of the model's metrics.
    pub metric_tags: BTreeMap<String, String>,
}

impl ResolvedConfig {
    /// Whether instances of the model run on GPUs.
    pub fn uses_gpus(&self) -> bool {
        let mut groups = self.instance_groups.iter();
        groups.any(|group| group.kind == InstanceKind::Gpu)
    }

    pub fn input(&self, name: &str) -> Option<(usize, &TensorSpec)> {
        self.inputs
            .iter()
            .enumerate()
            .find(|(_, spec)| &*spec.name == name)
    }

    pub fn output(&self, name: &str) -> Option<(usize, &TensorSpec)> {
        self.outputs
            .iter()
            .enumerate()
            .find(|(_, spec)| &*spec.name == name)
    }

    pub fn is_batching(&self) -> bool {
        self.max_batch_size > 0
    }

    /// Inputs that every request must have.
    pub fn required_inputs(&self) -> impl Iterator<Item = &TensorSpec> {
        self.inputs.iter().filter(|spec| !spec.is_optional)
    }

    /// What metadata reports as `platform`: the platform, else the backend.
    pub fn platform_or_backend(&self) -> &str {
        if self.platform.is_empty() {
            &self.backend
        } else {
            &self.platform
        }
    }
}

/// One input or output as configured, without the batch dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    pub name: Arc<str>,
    pub data_type: DataType,
    /// -1 is a variable dimension.
    pub dims: Vec<i64>,
    /// The shape the backend sees instead of `dims`.
    pub reshape: Option<Vec<i64>>,
    pub is_shape_tensor: bool,
    /// Inputs only: shapes may differ within a batch.
    pub allow_ragged_batch: bool,
    /// Inputs only: may be left out.
    pub is_optional: bool,
    pub is_non_linear_format_io: bool,
    /// Outputs only; empty if none.
    pub label_filename: Box<str>,
}

impl TensorSpec {
    pub fn has_variable_dims(&self) -> bool {
        self.dims.contains(&-1)
    }
}

/// How requests reach the instances.
#[derive(Clone, Debug, PartialEq)]
pub enum Scheduling {
    /// One request per execution, first in first out.
    Default,
    Dynamic(DynamicBatching),
    Sequence(Box<SequenceBatching>),
    /// Of other models, which have queues of their own.
    Ensemble,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    Latest(u32),
    All,
    Specific(Vec<i64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    Cpu,
    Gpu,
    Model,
}

/// A tensor that the backend derives from the shapes in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInput {
    pub kind: BatchInputKind,
    pub target_names: Vec<String>,
    /// INT32 or FP32.
    pub data_type: DataType,
    pub source_input: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchInputKind {
    ElementCount,
    AccumulatedElementCount,
    AccumulatedElementCountWithZero,
    MaxElementCountAsShape,
    ItemShape,
    ItemShapeFlatten,
}

/// Outputs that are split between requests by the shapes of an input. There is one kind: scatter
/// with input shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOutput {
    pub target_names: Vec<String>,
    pub source_input: String,
}

/// One resolved instance group: KIND_AUTO is already decided.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceGroup {
    pub name: Box<str>,
    pub kind: InstanceKind,
    pub count: u32,
    pub gpus: Vec<i32>,
    pub is_passive: bool,
    pub profiles: Vec<String>,
    /// Empty: the default policy of the kind.
    pub host_policy: Box<str>,
    /// Kind name (`KIND_NVDLA`) and id.
    pub secondary_devices: Vec<(String, i64)>,
    pub rate_limit: RateLimit,
}

/// What the rate limiter goes by, where there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    pub resources: Vec<RateResource>,
    /// 0 counts as 1.
    pub priority: u32,
}

/// What an instance needs while it executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateResource {
    pub name: Arc<str>,
    /// One pool for the server instead of one per device.
    pub is_global: bool,
    pub count: u32,
}
