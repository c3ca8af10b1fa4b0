//! Execution of an instance's batches: contexts on a stream, and the batches in flight.

use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::{
    BatchStreams, CudaGraph, DataType, DetachedBatch, DeviceBatches, DeviceStream, DeviceWork,
    Error, MemorySource, ModelConfig, StreamHandle,
};

use crate::buffers::{Buffer, ProfileContext, buffers, set_shape, unspecified};
use crate::capture::Capture;
use crate::facts::{Facts, check_shape};
use crate::graphs::{GraphKey, GraphSpecs, Graphs};
use crate::inputs::BatchInputs;
use crate::limits::limits;
use crate::outputs::{EngineOutput, OwnTarget, deliver_values, share_of};
use crate::profiles::{Profile, check_values, choose, profiles_of};
use crate::roles::{TensorRole, tensor_roles};
use crate::settings::Settings;
use crate::trt::{Binding, Context, Engine};
use crate::validate::validate;

/// Batches of an instance in flight: while one is computed, the next is brought, or the last taken
/// away. Each has buffers of its own; contexts and the stream are shared.
const DEPTH: usize = 2;

/// What an executor is made of.
pub struct Setup<'s> {
    pub model_name: &'s str,
    pub config: &'s ModelConfig,
    pub settings: &'s Settings,
    pub graphs: Option<&'s GraphSpecs>,
    pub engine: Arc<Engine>,
    pub stream: DeviceStream,
    /// Of the instance.
    pub name: &'s str,
    pub profile_names: &'s [String],
}

/// Executes the batches of an instance.
pub struct Executor {
    /// Dropped first: it waits for what is in flight.
    batches: DeviceBatches<Slot>,
    runner: Runner,
}

/// What a batch in flight has of its own.
struct Slot {
    buffers: Vec<Buffer>,
    /// Of each profile.
    graphs: Vec<Graphs<CudaGraph>>,
}

/// The part of an instance that all batches share.
struct Runner {
    name: String,
    model_name: String,
    profiles: Vec<Profile>,
    contexts: Vec<ProfileContext>,
    roles: Vec<TensorRole>,
    engine: Arc<Engine>,
    stream: StreamHandle,
}

impl Executor {
    /// # Errors
    /// What the configuration and the engine disagree on; what TensorRT and the driver refuse.
    pub fn new(setup: &Setup<'_>) -> Result<Self, Error> {
        let (engine, stream, name) = (&setup.engine, setup.stream.handle(), setup.name);
        let facts = engine.facts();
        validate(setup.model_name, name, setup.config, facts)?;
        let (profiles, notes) = profiles_of(setup.profile_names, facts, name)?;
        for note in notes {
            sdk::warning!("{note}");
        }
        let roles = tensor_roles(setup.config, facts)?;
        let current = stream.current()?;
        let contexts = profiles
            .iter()
            .map(|profile| {
                let which = (profile.index, profile.name.as_str(), name);
                ProfileContext::new(
                    profile.name.clone(),
                    Context::new(engine, setup.settings.strategy, which, &stream)?,
                    limits(setup.model_name, setup.config, facts, &roles, profile.index)?,
                    name,
                )
            })
            .collect::<Result<Vec<_>, Error>>()?;
        drop(current);
        let mut executor = Executor {
            batches: DeviceBatches::new(&setup.stream)?,
            runner: Runner {
                name: name.to_owned(),
                model_name: setup.model_name.to_owned(),
                profiles,
                contexts,
                roles,
                engine: Arc::clone(engine),
                stream,
            },
        };
        for _ in 0..DEPTH {
            let slot = executor.runner.slot(setup)?;
            let streams = executor.runner.streams(setup)?;
            executor.batches.add_slot(streams, slot)?;
        }
        executor.runner.log_creation();
        Ok(executor)
    }

    /// Batches that may be in flight.
    pub fn depth_max(&self) -> usize {
        self.batches.depth_max()
    }

    /// Enqueues a batch, or answers that there is no room for it.
    pub fn enqueue(&mut self, batch: DetachedBatch) {
        let runner = &mut self.runner;
        self.batches.enqueue(
            batch,
            |request| request.respond(),
            |slot, work| runner.enqueue(work, &slot.buffers, &slot.graphs),
        );
    }

    /// Answers the batches that the device is done with, in order; returns how many are left.
    pub fn poll(&mut self) -> usize {
        self.batches.poll()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // TensorRT frees memory of the device that is current.
        let stream = self.runner.stream.clone();
        let _current = stream.current();
        self.batches.clear();
        self.runner.contexts.clear();
    }
}

impl Runner {
    fn slot(&mut self, setup: &Setup<'_>) -> Result<Slot, Error> {
        let engine = Arc::clone(&self.engine);
        let stream = self.stream.clone();
        let _current = stream.current()?;
        let facts = engine.facts();
        let buffers = buffers(facts, &self.contexts, &self.roles, &stream, &self.name)?;
        let capture = Capture {
            facts,
            roles: &self.roles,
            stream: &stream,
            instance: &self.name,
        };
        let graphs = match setup.graphs {
            Some(specs) => {
                let contexts = self.contexts.iter_mut();
                contexts
                    .map(|profile| capture.graphs(specs, profile, &buffers))
                    .collect()
            }
            None => Vec::new(),
        };
        Ok(Slot { buffers, graphs })
    }

    /// The streams of a slot: inputs have one of its own, and outputs too where it is configured,
    /// so that the engine goes on with the next batch.
    fn streams(&self, setup: &Setup<'_>) -> Result<BatchStreams, Error> {
        let settings = setup.settings;
        let copies = setup.stream.another(settings.priority)?.handle();
        let copy_out = match settings.has_output_stream {
            true => copies.clone(),
            false => self.stream.clone(),
        };
        Ok(BatchStreams {
            copy_in: copies,
            compute: self.stream.clone(),
            copy_out,
        })
    }

    /// Logs what upstream's backend logs of a new instance.
    fn log_creation(&self) {
        let profiles: Vec<_> = self
            .profiles
            .iter()
            .map(|profile| format!(" {}[{}]", profile.name, profile.index))
            .collect();
        sdk::info!(
            "Created instance {} on GPU {} and optimization profile{}, {DEPTH} batches in flight",
            self.name,
            self.stream.place().id,
            profiles.join(";")
        );
    }

    /// Enqueues all work of a batch.
    fn enqueue<'w>(
        &mut self,
        work: &mut DeviceWork<'w>,
        buffers: &'w [Buffer],
        graphs: &'w [Graphs<CudaGraph>],
    ) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let facts = engine.facts();
        let batch = work.batch();
        let inputs = BatchInputs::read(batch, facts, &self.roles, &self.name)?;
        let at = choose(&self.profiles, facts, &inputs.given);
        self.check(&inputs, at)?;
        let is_batching = batch.max_batch_size() > 0;
        let batch_size = if is_batching { inputs.total } else { 0 };
        let mut key: GraphKey = vec![i64::try_from(batch_size).unwrap_or(i64::MAX)];
        key.extend(
            inputs
                .given
                .iter()
                .flat_map(|given| given.dims.iter().copied()),
        );
        let graph = graphs.get(at).and_then(|graphs| graphs.find(&key));
        // The shapes that the engine runs with: those of the graph, where there is one.
        let dims = match graph {
            Some((key, _)) => split(key, &inputs),
            None => inputs
                .given
                .iter()
                .map(|given| given.dims.clone())
                .collect(),
        };
        self.set_inputs(facts, &inputs, &dims, buffers, at)?;
        let in_place = self.place_inputs(work, facts, &inputs, buffers, graph.is_none())?;
        let run = Run {
            at,
            graph: graph.map(|(_, graph)| graph),
            in_place,
        };
        self.run(work, facts, &inputs, buffers, run)
    }

    /// Checks shapes and values against the profile.
    fn check(&self, inputs: &BatchInputs, at: usize) -> Result<(), Error> {
        let engine = &self.engine;
        let profile = &self.contexts[at];
        for given in &inputs.given {
            let tensor = &engine.facts().tensors[given.tensor];
            let Some(bounds) = &profile.limits[given.tensor] else {
                continue;
            };
            check_shape(&given.dims, bounds).map_err(|why| {
                Error::internal(format!(
                    "request specifies invalid shape for input '{}' for {}. Error details: {why}",
                    tensor.name(),
                    self.name
                ))
            })?;
            if let (Some(values), Some([min, _, max])) = (&given.values, &bounds.values) {
                check_values(values, min, max).map_err(Error::invalid)?;
            }
        }
        Ok(())
    }

    fn set_inputs(
        &mut self,
        facts: &Facts,
        inputs: &BatchInputs,
        dims: &[Vec<i64>],
        buffers: &[Buffer],
        at: usize,
    ) -> Result<(), Error> {
        let context = &mut self.contexts[at].context;
        for (given, dims) in inputs.given.iter().zip(dims) {
            let tensor = &facts.tensors[given.tensor];
            set_shape(context, tensor, dims, &self.name)?;
            if let (Some(values), Buffer::Host(host)) = (&given.values, &buffers[given.tensor]) {
                host.set(values, tensor.data_type == Some(DataType::Int64));
                if !context.set_values(&tensor.name, host) {
                    return Err(unspecified());
                }
            }
        }
        match context.infers_shapes() {
            true => Ok(()),
            false => Err(unspecified()),
        }
    }

    /// Plans the copies of inputs; returns those that stay where they are.
    fn place_inputs<'w>(
        &self,
        work: &mut DeviceWork<'w>,
        facts: &Facts,
        inputs: &BatchInputs,
        buffers: &'w [Buffer],
        may_stay: bool,
    ) -> Result<Vec<(usize, MemorySource<'w>)>, Error> {
        let mut in_place = Vec::new();
        for given in &inputs.given {
            let index = given.tensor;
            let Buffer::Device(block) = &buffers[index] else {
                continue;
            };
            let tensor = (index, &facts.tensors[index]);
            let how = (&given.dims[..], may_stay, self.model_name.as_str());
            if let Some(source) = inputs.place(work, tensor, block, how)? {
                in_place.push((index, source));
            }
        }
        Ok(in_place)
    }

    /// Runs the engine, and plans the copies of outputs.
    fn run<'w>(
        &mut self,
        work: &mut DeviceWork<'w>,
        facts: &Facts,
        inputs: &BatchInputs,
        buffers: &'w [Buffer],
        run: Run<'w>,
    ) -> Result<(), Error> {
        let profile = &mut self.contexts[run.at];
        // Shapes, and memory of responses that the engine writes itself.
        let mut dims = Vec::new();
        let mut targets: Vec<(usize, OwnTarget<'w>)> = Vec::new();
        for (index, tensor) in facts.outputs() {
            let shape = profile.context.shape(&tensor.name)?;
            if let (Some(output), true) = (
                engine_output(tensor, &self.roles[index], &shape, &buffers[index])?,
                run.graph.is_none(),
            ) && let Some(own) = output.own_target(work)?
            {
                targets.push((index, own));
            }
            dims.push((index, shape));
        }
        match run.graph {
            Some(graph) => {
                sdk::verbose!(
                    "Context with profile {} [{}] is launching CUDA graph for {}",
                    profile.name,
                    profile.context.profile(),
                    self.name
                );
                profile.context.launch(work, graph)?;
            }
            None => {
                sdk::verbose!(
                    "Context with profile {} [{}] is being executed for {}",
                    profile.name,
                    profile.context.profile(),
                    self.name
                );
                let bindings: Vec<_> = facts
                    .tensors
                    .iter()
                    .enumerate()
                    .map(|(index, tensor)| {
                        let source = run.in_place.iter().find(|(at, _)| *at == index);
                        let own = targets
                            .iter()
                            .find(|(at, own)| *at == index && own.is_direct);
                        let binding = match (source, own) {
                            (Some((_, source)), _) => Binding::Source(*source),
                            (None, Some((_, own))) => Binding::Target(&own.target),
                            (None, None) => buffers[index].binding(),
                        };
                        (tensor.name.as_c_str(), binding)
                    })
                    .collect();
                profile.context.run(work, &self.name, &bindings)?;
            }
        }
        for (index, shape) in dims {
            let own = targets.iter().position(|(at, _)| *at == index);
            let own = own.map(|at| targets.swap_remove(at).1);
            self.deliver(work, (index, facts), inputs, (&buffers[index], shape, own))?;
        }
        Ok(())
    }

    fn deliver<'w>(
        &self,
        work: &mut DeviceWork<'w>,
        (index, facts): (usize, &Facts),
        inputs: &BatchInputs,
        (buffer, shape, own): (&'w Buffer, Vec<i64>, Option<OwnTarget<'w>>),
    ) -> Result<(), Error> {
        let (tensor, role) = (&facts.tensors[index], &self.roles[index]);
        let shape = match buffer {
            Buffer::Host(values) => {
                let count = shape.first().copied().unwrap_or(1);
                let values = values.get(usize::try_from(count).unwrap_or(0), true);
                return deliver_values(work, tensor, inputs, &values, &self.name);
            }
            Buffer::DataDependent(output) => output.shape().ok_or_else(|| {
                let name = tensor.name();
                Error::internal(format!("TensorRT told no shape of output '{name}'"))
            })?,
            Buffer::Device(_) => shape,
        };
        let Some(source) = buffer.source() else {
            return Ok(());
        };
        let Some(output) = engine_output(tensor, role, &shape, buffer)? else {
            return Err(Error::internal(format!(
                "unable to calculate size for output '{}' for {}",
                tensor.name(),
                self.name
            )));
        };
        match own {
            // Written by the engine.
            Some(own) if own.is_direct => Ok(()),
            Some(mut own) => {
                let share = share_of(source, 0, output.byte_count)?;
                work.copy_out(0, share, &mut own.target)
            }
            None => output.deliver(work, inputs, source),
        }
    }
}

/// How a batch is run.
struct Run<'w> {
    /// The place of its profile.
    at: usize,
    graph: Option<&'w CudaGraph>,
    in_place: Vec<(usize, MemorySource<'w>)>,
}

/// An output of a known shape; none if that is not known yet.
fn engine_output<'m>(
    tensor: &'m crate::facts::Tensor,
    role: &'m TensorRole,
    dims: &'m [i64],
    buffer: &Buffer,
) -> Result<Option<EngineOutput<'m>>, Error> {
    let (TensorRole::Output(output_role), Some(data_type)) = (role, tensor.data_type) else {
        return Ok(None);
    };
    let Some(byte_count) = tensor.byte_count(dims) else {
        return Ok(None);
    };
    if let Buffer::Device(block) = buffer
        && byte_count > block.len()
    {
        return Err(Error::internal(format!(
            "unexpected size for output '{}', byte-size {} is less than {byte_count}",
            tensor.name(),
            block.len()
        )));
    }
    if matches!(buffer, Buffer::Host(_)) {
        return Ok(None);
    }
    Ok(Some(EngineOutput {
        tensor,
        output_role,
        data_type,
        dims,
        byte_count,
    }))
}

/// The shapes in a graph's key, input by input.
fn split(key: &[i64], inputs: &BatchInputs) -> Vec<Vec<i64>> {
    let mut rest = key.get(1..).unwrap_or_default();
    let shape = |given: &crate::profiles::InputShape| {
        let (shape, after) = rest.split_at(given.dims.len().min(rest.len()));
        rest = after;
        shape.to_vec()
    };
    inputs.given.iter().map(shape).collect()
}
