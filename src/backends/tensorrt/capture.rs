//! CUDA graphs of an instance, captured when it is made.

use conch_backend_sdk as sdk;
use sdk::{CudaGraph, Error, StreamHandle};

use crate::buffers::{Buffer, ProfileContext, bindings, set_shape, unspecified};
use crate::facts::{Facts, check_shape, text};
use crate::graphs::{GraphKey, GraphSpec, GraphSpecs, Graphs};
use crate::roles::{InputRole, TensorRole};

/// What captures need of an instance.
pub struct Capture<'c> {
    pub facts: &'c Facts,
    pub roles: &'c [TensorRole],
    pub stream: &'c StreamHandle,
    pub instance: &'c str,
}

impl Capture<'_> {
    /// The graphs of a profile on the buffers of one batch in flight. What cannot be captured is
    /// told in the log, and runs without a graph.
    pub fn graphs(
        &self,
        specs: &GraphSpecs,
        profile: &mut ProfileContext,
        buffers: &[Buffer],
    ) -> Graphs<CudaGraph> {
        let mut graphs = Graphs::new(specs.allows_inexact);
        let instance = self.instance;
        if self.facts.tensors.iter().any(|tensor| tensor.is_shape) {
            sdk::warning!("Detected shape tensor, CUDA graph is not captured for {instance}");
            return graphs;
        }
        if buffers
            .iter()
            .any(|buffer| matches!(buffer, Buffer::DataDependent(_)))
        {
            sdk::warning!(
                "Detected an output whose shape depends on data, CUDA graph is not captured for \
                 {instance}"
            );
            return graphs;
        }
        for spec in &specs.specs {
            match self.capture(spec, profile, buffers) {
                Ok((key, lower, graph)) => {
                    sdk::verbose!(
                        "captured CUDA graph for {instance}, batch size {}",
                        spec.batch_size
                    );
                    graphs.insert(key, lower, graph);
                }
                Err(error) => sdk::error!(
                    "unable to record CUDA graph for {instance}, batch size {}: {error}",
                    spec.batch_size
                ),
            }
        }
        graphs
    }

    fn capture(
        &self,
        spec: &GraphSpec,
        profile: &mut ProfileContext,
        buffers: &[Buffer],
    ) -> Result<(GraphKey, GraphKey, CudaGraph), Error> {
        let mut key = vec![spec.batch_size];
        let mut lower = vec![spec.lower_batch_size];
        for (index, tensor) in self.facts.inputs() {
            let Some(bounds) = profile.limits.get(index).and_then(Option::as_ref) else {
                continue;
            };
            let (dims, lowest) = match spec.shapes.is_empty() {
                true => {
                    let mut dims = bounds.best.clone();
                    if let (true, Some(first)) = (spec.batch_size != 0, dims.first_mut()) {
                        *first = spec.batch_size;
                    }
                    (dims.clone(), dims)
                }
                false => self.written_shape(spec, index)?,
            };
            check_shape(&dims, bounds).map_err(|why| {
                Error::internal(format!(
                    "trt failed to set input shape to {} for input {} for {}: {why}",
                    text(&dims),
                    tensor.name(),
                    self.instance
                ))
            })?;
            set_shape(&mut profile.context, tensor, &dims, self.instance)?;
            key.extend(dims);
            lower.extend(lowest);
        }
        let context = &mut profile.context;
        if !context.infers_shapes() {
            return Err(unspecified());
        }
        let bindings = bindings(self.facts, buffers);
        // TensorRT sets up what it needs for these shapes at the first run, which cannot be
        // captured.
        context.run_alone(self.stream, self.instance, &bindings)?;
        let graph = context.capture(self.stream, self.instance, &bindings)?;
        Ok((key, lower, graph))
    }

    /// The shape of an input in a specification, and its lower bound. That of tensors which are not
    /// joined along the batch is whole.
    fn written_shape(&self, spec: &GraphSpec, index: usize) -> Result<(Vec<i64>, Vec<i64>), Error> {
        let (tensor, role) = (&self.facts.tensors[index], &self.roles[index]);
        let name = tensor.name();
        let (shape, lower) = match (
            spec.shapes.get(name.as_ref()),
            spec.lower_shapes.get(name.as_ref()),
        ) {
            (Some(shape), Some(lower)) => (shape, lower),
            _ => {
                return Err(Error::invalid(format!(
                    "trt failed to set input shape for unknown input '{name}' for {}",
                    self.instance
                )));
            }
        };
        let is_whole = matches!(
            role,
            TensorRole::Input(InputRole::Ragged | InputRole::Shapes(_))
        );
        let with_batch = |batch: i64, dims: &[i64]| -> Vec<i64> {
            let batch = (batch != 0 && !is_whole).then_some(batch);
            batch.into_iter().chain(dims.iter().copied()).collect()
        };
        Ok((
            with_batch(spec.batch_size, shape),
            with_batch(spec.lower_batch_size, lower),
        ))
    }
}
