//! Facts of a model that its borrowed requests need. Shared, and independent of the plug-in, so
//! that a request that outlives its model stays sound.

use std::ffi::CString;
use std::sync::Arc;

use conch_config::{ResolvedConfig, Scheduling, TensorSpec};
use conch_engine::Shape;
use conch_log::LogLimiter;
use conch_memory::{Budget, Owner, Pool};

use crate::boundary::c_string;

/// A model's names in both languages, and where its output buffers come from.
pub(crate) struct ModelFacts {
    pub(crate) backend: String,
    pub(crate) is_decoupled: bool,
    /// Its requests may be run again.
    pub(crate) is_iterative: bool,
    pub(crate) pool: Arc<Pool>,
    /// Of the output buffers.
    pub(crate) owner: Owner,
    pub(crate) budget: Arc<Budget>,
    pub(crate) log_limiter: LogLimiter,
    inputs: TensorNames,
    outputs: TensorNames,
    /// Places in `outputs`, by name: upstream's order for a request of all outputs, which clients
    /// see.
    output_ranks: Vec<usize>,
    has_batch_dim: bool,
    reshapes: Vec<OutputReshape>,
}

/// An output that clients see in another shape than the backend makes.
struct OutputReshape {
    name: Arc<str>,
    /// What the backend makes, without the batch dimension.
    source: Vec<i64>,
    /// What clients see. As many variable dimensions as `source`, in the same order.
    target: Vec<i64>,
}

/// Tensor names, in the order of the configuration.
type TensorNames = Vec<(Arc<str>, CString)>;

impl ModelFacts {
    pub(crate) fn new(
        config: &ResolvedConfig,
        backend: String,
        pool: Arc<Pool>,
        budget: Arc<Budget>,
    ) -> ModelFacts {
        let mut output_ranks: Vec<usize> = (0..config.outputs.len()).collect();
        output_ranks.sort_by_key(|place| config.outputs.get(*place).map(|spec| &*spec.name));
        ModelFacts {
            backend,
            is_decoupled: config.is_decoupled,
            is_iterative: match &config.scheduling {
                Scheduling::Sequence(settings) => settings.is_iterative,
                _ => false,
            },
            pool,
            owner: Owner::new(),
            budget,
            log_limiter: LogLimiter::default(),
            inputs: names(&config.inputs),
            outputs: names(&config.outputs),
            output_ranks,
            has_batch_dim: config.is_batching(),
            reshapes: config
                .outputs
                .iter()
                .filter_map(|spec| {
                    Some(OutputReshape {
                        name: Arc::clone(&spec.name),
                        source: spec.reshape.clone()?,
                        target: spec.dims.clone(),
                    })
                })
                .collect(),
        }
    }

    pub(crate) fn input_name(&self, name: &Arc<str>) -> Option<&CString> {
        // Requests carry the configuration's own names, so the first comparison settles it.
        let same = self
            .inputs
            .iter()
            .find(|(known, _)| Arc::ptr_eq(known, name));
        same.or_else(|| self.inputs.iter().find(|(known, _)| known == name))
            .map(|(_, c_name)| c_name)
    }

    pub(crate) fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// The index of the output whose name is at `rank` in the order of the alphabet.
    pub(crate) fn output_at_rank(&self, rank: usize) -> Option<usize> {
        self.output_ranks.get(rank).copied()
    }

    pub(crate) fn output_name(&self, index: usize) -> Option<&CString> {
        self.outputs.get(index).map(|(_, c_name)| c_name)
    }

    /// The shape in which clients see the output that the backend makes in `shape`: another one
    /// only if the configuration reshapes it.
    pub(crate) fn output_shape(&self, name: &str, shape: &[i64]) -> Shape {
        let reshape = self.reshapes.iter().find(|known| &*known.name == name);
        reshape
            .and_then(|reshape| reshape.apply(shape, usize::from(self.has_batch_dim)))
            .unwrap_or_else(|| Shape::from_slice(shape))
    }

    /// Index and shared name of the configured output that is called so.
    pub(crate) fn find_output(&self, name: &str) -> Option<(usize, &Arc<str>)> {
        let index = self
            .outputs
            .iter()
            .position(|(known, _)| &**known == name)?;
        Some((index, &self.outputs.get(index)?.0))
    }
}

impl OutputReshape {
    /// `None` if `made` has not the configured rank: then there is nothing to go by, and it stays
    /// as it is.
    fn apply(&self, made: &[i64], batch_dim_count: usize) -> Option<Shape> {
        let (batch, dims) = made.split_at_checked(batch_dim_count)?;
        if dims.len() != self.source.len() {
            return None;
        }
        let mut variable = self
            .source
            .iter()
            .zip(dims)
            .filter(|(configured, _)| **configured == -1)
            .map(|(_, got)| *got);
        let mut shape = Shape::from_slice(batch);
        for dim in &self.target {
            shape.push(if *dim == -1 { variable.next()? } else { *dim });
        }
        Some(shape)
    }
}

fn names(specs: &[TensorSpec]) -> TensorNames {
    specs
        .iter()
        .map(|spec| (Arc::clone(&spec.name), c_string(&spec.name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_take_the_configured_shape() {
        let reshape = |source: &[i64], target: &[i64]| OutputReshape {
            name: "o".into(),
            source: source.to_vec(),
            target: target.to_vec(),
        };
        // What the backend makes, what clients see, batch dimensions, a shape made, and the one
        // seen.
        type Case<'a> = (&'a [i64], &'a [i64], usize, &'a [i64], Option<&'a [i64]>);
        let cases: [Case<'_>; 6] = [
            (
                &[1, 1000, 1, 1],
                &[1000],
                0,
                &[1, 1000, 1, 1],
                Some(&[1000]),
            ),
            (&[], &[1], 1, &[7], Some(&[7, 1])),
            (&[-1, 1, -1], &[-1, -1], 1, &[2, 3, 1, 5], Some(&[2, 3, 5])),
            (&[4, -1], &[-1, 2, 2], 0, &[4, 9], Some(&[9, 2, 2])),
            (&[4], &[2, 2], 0, &[4, 1], None),
            (&[4], &[2, 2], 1, &[], None),
        ];
        for (source, target, batch_dim_count, made, seen) in cases {
            let shape = reshape(source, target).apply(made, batch_dim_count);
            assert_eq!(shape.as_deref(), seen, "{source:?} -> {target:?}: {made:?}");
        }
    }
}
