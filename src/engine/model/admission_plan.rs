//! Facts of a configuration that admission needs, computed once per model version.

use std::collections::HashMap;
use std::sync::Arc;

use conch_config::{ResolvedConfig, Scheduling, SequenceStrategy, TensorSpec};
use conch_memory::{ByteView, OutOfMemory, try_reserve};
use conch_scheduler::Signature;

use crate::tensor::Input;

/// Up to so many tensors a walk over their names beats hashing one.
const LINEAR_MAX: usize = 12;

/// Computed once per model version; requests only read it.
#[derive(Debug, Default)]
pub(crate) struct AdmissionPlan {
    pub(crate) required_count: usize,
    /// Empty for models with few tensors.
    inputs: HashMap<Arc<str>, usize>,
    outputs: HashMap<Arc<str>, usize>,
    /// Whether two requests of the model may be unfit for one batch.
    has_signature: bool,
    has_optional: bool,
}

/// Whether the responses of a model with this configuration leave in the order of its requests.
pub(crate) fn preserves_order(config: &ResolvedConfig) -> bool {
    match &config.scheduling {
        Scheduling::Dynamic(settings) => settings.is_preserving_order,
        Scheduling::Sequence(settings) => match &settings.strategy {
            SequenceStrategy::Oldest(batching) => batching.is_preserving_order,
            SequenceStrategy::Direct { .. } => false,
        },
        Scheduling::Default | Scheduling::Ensemble => false,
    }
}

impl AdmissionPlan {
    pub(crate) fn new(config: &ResolvedConfig) -> AdmissionPlan {
        let has_optional = config.inputs.iter().any(|spec| spec.is_optional);
        // The default scheduler puts no requests together.
        let batches = config.is_batching()
            && matches!(
                config.scheduling,
                Scheduling::Dynamic(_) | Scheduling::Sequence(_)
            );
        AdmissionPlan {
            required_count: config
                .inputs
                .iter()
                .filter(|spec| !spec.is_optional)
                .count(),
            inputs: index(&config.inputs),
            outputs: index(&config.outputs),
            has_signature: batches && (has_optional || config.inputs.iter().any(is_compared)),
            has_optional,
        }
    }

    pub(crate) fn input_index(&self, config: &ResolvedConfig, name: &str) -> Option<usize> {
        find(&self.inputs, &config.inputs, name)
    }

    pub(crate) fn output_index(&self, config: &ResolvedConfig, name: &str) -> Option<usize> {
        find(&self.outputs, &config.outputs, name)
    }

    /// What must be equal in a batch, as numbers: per configured input whether it is there (if any
    /// is optional), and rank, dimensions and content of the compared ones. Self-delimiting, so
    /// equal signatures mean equal facts.
    ///
    /// # Errors
    /// Without memory for the content, which is as large as the client likes.
    pub(crate) fn signature(
        &self,
        config: &ResolvedConfig,
        indices: &[usize],
        inputs: &[Input],
        has_batch_dim: bool,
    ) -> Result<Signature, OutOfMemory> {
        let mut signature = Signature::new();
        if !self.has_signature {
            return Ok(signature);
        }
        for (index, spec) in config.inputs.iter().enumerate() {
            let input = indices
                .iter()
                .position(|other| *other == index)
                .and_then(|position| inputs.get(position));
            if self.has_optional {
                signature.push(i64::from(input.is_some()));
            }
            let Some(input) = input.filter(|_| is_compared(spec)) else {
                continue;
            };
            let dims = input.shape.get(usize::from(has_batch_dim)..).unwrap_or(&[]);
            signature.push(dims.len() as i64);
            signature.extend_from_slice(dims);
            if spec.is_shape_tensor {
                append_content(&mut signature, &input.chunks)?;
            }
        }
        Ok(signature)
    }
}

/// Inputs whose shapes must agree within a batch; of shape tensors also the content.
fn is_compared(spec: &TensorSpec) -> bool {
    !spec.allow_ragged_batch && (spec.has_variable_dims() || spec.is_shape_tensor)
}

fn append_content(signature: &mut Signature, chunks: &[ByteView]) -> Result<(), OutOfMemory> {
    let byte_count = chunks
        .iter()
        .map(|chunk| chunk.as_ref().len())
        .sum::<usize>();
    try_reserve(signature, 1 + byte_count.div_ceil(8))?;
    signature.push(byte_count as i64);
    let mut bytes = chunks.iter().flat_map(|chunk| chunk.as_ref()).copied();
    for _ in 0..byte_count.div_ceil(8) {
        let word = std::array::from_fn(|_| bytes.next().unwrap_or(0));
        signature.push(i64::from_le_bytes(word));
    }
    Ok(())
}

fn index(specs: &[TensorSpec]) -> HashMap<Arc<str>, usize> {
    if specs.len() <= LINEAR_MAX {
        return HashMap::new();
    }
    specs
        .iter()
        .enumerate()
        .map(|(index, spec)| (Arc::clone(&spec.name), index))
        .collect()
}

fn find(names: &HashMap<Arc<str>, usize>, specs: &[TensorSpec], name: &str) -> Option<usize> {
    if names.is_empty() {
        specs.iter().position(|spec| &*spec.name == name)
    } else {
        names.get(name).copied()
    }
}
