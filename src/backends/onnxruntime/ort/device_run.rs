//! Runs of a session on a GPU: inputs and outputs are bound to the memory that they lie in.

use std::ptr::NonNull;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Feed, FeedData, OutputBuffer, Target};
use sdk::{DataType, DeviceWork, Error, StreamHandle};

use super::gpu_memory::GpuMemoryInfo;
use super::graphs::{Graph, Graphs};
use super::io_binding::{BindingGuard, IoBinding};
use super::providers::Gpu;
use super::run_options::{RawRunOptions, RunOptions};
use super::runtime::Runtime;
use super::table::OrtSession;
use super::value::Value;

/// What runs on a GPU need beside the session.
pub(super) struct DeviceRun {
    binding: IoBinding,
    memory: GpuMemoryInfo,
    /// Of the session, which enqueues on it.
    stream: Option<StreamHandle>,
    graphs: Option<Graphs>,
}

impl DeviceRun {
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    ///
    /// # Safety
    /// `session` is live, and outlives what is made.
    pub(super) unsafe fn new(
        runtime: &Arc<Runtime>,
        session: NonNull<OrtSession>,
        gpu: &Gpu,
    ) -> Result<Self, Error> {
        Ok(DeviceRun {
            // SAFETY: by this function's contract.
            binding: unsafe { IoBinding::new(runtime, session)? },
            memory: GpuMemoryInfo::new(runtime, gpu.device)?,
            stream: gpu.stream.clone(),
            graphs: gpu.graphs.clone().map(Graphs::new),
        })
    }

    /// Whether outputs may be written into memory of responses, which is elsewhere each time.
    pub(super) fn writes_in_place(&self) -> bool {
        self.graphs.is_none()
    }

    /// Runs the model on `feeds` and returns the outputs of `targets`, in their order: `None` where
    /// a target had memory of its own. What the run has enqueued is done when this returns, also
    /// with an error.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words; `InvalidArgument` if a string tensor's bytes do
    /// not fit its shape.
    pub(super) fn run(
        &mut self,
        options: &RunOptions,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        let outputs = self.run_once(options, feeds, targets);
        if let (Err(_), Some(stream)) = (&outputs, &self.stream) {
            // Kernels that were started before the error read the feeds. A stream that cannot be
            // waited for is one whose context is gone, and its work with it.
            let _ = stream.synchronize();
        }
        outputs
    }

    fn run_once(
        &mut self,
        options: &RunOptions,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        let DeviceRun {
            binding,
            memory,
            graphs,
            ..
        } = self;
        if let Some(graphs) = graphs
            && let Some(graph) = graphs.graph_for(options, feeds, targets)?
        {
            // SAFETY: the feeds stay until the run is over, also with an error: `run` waits.
            return unsafe { replay(binding, memory, graph, feeds) };
        }
        run_bound(binding, memory, options.ordinary(), feeds, targets)
    }

    /// As [`run`](Self::run), but leaves the run on the stream, which is that of `work`. It has no
    /// graph.
    ///
    /// # Errors
    /// As there, and what the driver refuses.
    pub(super) fn enqueue<'m>(
        &mut self,
        options: &RunOptions,
        work: &mut DeviceWork<'m>,
        feeds: &[Feed<'m>],
        targets: &mut [Target<'_, 'm>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        let (binding, memory) = (&mut self.binding, &self.memory);
        let mut outputs = Vec::new();
        work.compute(|_| {
            outputs = run_bound(binding, memory, options.without_wait(), feeds, targets)?;
            Ok(())
        })?;
        Ok(outputs)
    }
}

/// Runs the session on feeds and targets as they are. Returns the outputs that have no memory of
/// their targets.
fn run_bound(
    binding: &mut IoBinding,
    memory: &GpuMemoryInfo,
    options: &RawRunOptions,
    feeds: &[Feed<'_>],
    targets: &mut [Target<'_, '_>],
) -> Result<Vec<Option<Value<'static>>>, Error> {
    let mut bound = binding.begin();
    for feed in feeds {
        let value = match feed.data {
            FeedData::Host(_) => Value::borrow(&memory.runtime, feed)?,
            FeedData::Device(bytes) => Value::borrow_on_device(memory, feed, bytes)?,
        };
        bound.input(feed.name, value)?;
    }
    let mut places = Vec::with_capacity(targets.len());
    for target in targets {
        places.push(bind_output(&mut bound, memory, target)?);
    }
    let outputs = bound.run(options)?.into_iter().zip(places);
    Ok(outputs
        .map(|(value, place)| match place {
            OutputPlace::Target => None,
            OutputPlace::Host => Some(value),
            OutputPlace::Device => Some(value.on_device(memory.device)),
        })
        .collect())
}

/// Runs the session on the memory of a graph. What is returned lies there, until its next run.
///
/// # Safety
/// The feeds stay as they are until the run's stream was waited for.
unsafe fn replay(
    binding: &mut IoBinding,
    memory: &GpuMemoryInfo,
    graph: &mut Graph,
    feeds: &[Feed<'_>],
) -> Result<Vec<Option<Value<'static>>>, Error> {
    // SAFETY: by this function's contract.
    unsafe { graph.fill(feeds)? };
    let outputs = graph.outputs.iter_mut();
    let mut targets = outputs
        .map(|output| {
            Ok((
                &output.name,
                output.data_type,
                &output.shape,
                output.block.target()?,
            ))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let mut bound = binding.begin();
    for (feed, input) in feeds.iter().zip(&graph.inputs) {
        let value = Value::borrow_on_device(memory, feed, input.block.source())?;
        bound.input(feed.name, value)?;
    }
    for (name, data_type, shape, target) in &mut targets {
        bound.output(
            name,
            Value::over_on_device(memory, *data_type, shape, target)?,
        )?;
    }
    let values = bound.run(&graph.options)?.into_iter();
    let device = memory.device;
    Ok(values.map(|value| Some(value.on_device(device))).collect())
}

/// Where a run leaves an output.
enum OutputPlace {
    /// In the target's own memory.
    Target,
    Host,
    Device,
}

/// Binds an output: to memory of its own, or to the GPU. Strings are only ever in main memory.
fn bind_output<'t>(
    bound: &mut BindingGuard<'_, 't>,
    memory: &GpuMemoryInfo,
    target: &'t mut Target<'_, '_>,
) -> Result<OutputPlace, Error> {
    let info = target.info;
    let Some(own) = &mut target.memory else {
        let (memory_info, place) = match info.data_type {
            DataType::Bytes => (memory.runtime.memory_info, OutputPlace::Host),
            _ => (memory.raw, OutputPlace::Device),
        };
        bound.output_in(&info.name, memory_info)?;
        return Ok(place);
    };
    let (data_type, shape) = (info.data_type, &own.shape);
    let value = match &mut own.buffer {
        OutputBuffer::Host(buffer) => Value::over(&memory.runtime, data_type, shape, buffer)?,
        OutputBuffer::Device(target) => Value::over_on_device(memory, data_type, shape, target)?,
    };
    bound.output(&info.name, value)?;
    Ok(OutputPlace::Target)
}
