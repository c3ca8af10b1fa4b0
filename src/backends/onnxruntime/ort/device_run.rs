//! Runs of a session on a GPU: inputs and outputs are bound to the memory that they lie in.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Feed, FeedData, Room, Target};
use sdk::{DataType, Error, StreamHandle};

use super::binding::{Binding, Bound};
use super::graphs::{Graph, Graphs};
use super::providers::Gpu;
use super::run_options::RunOptions;
use super::runtime::Runtime;
use super::table::{OrtMemoryInfo, OrtSession};
use super::value::Value;

/// `OrtArenaAllocator` and `OrtMemTypeDefault`: memory of the session's arena on the GPU.
const ARENA_ALLOCATOR: i32 = 1;
const MEMORY_TYPE_DEFAULT: i32 = 0;

/// Of a run that neither captures nor replays a graph.
const NO_GRAPH: i32 = -1;

/// What runs on a GPU need beside the session.
pub(super) struct DeviceRun {
    binding: Binding,
    place: DevicePlace,
    device: i32,
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
            binding: unsafe { Binding::new(runtime, session)? },
            place: DevicePlace::new(runtime, gpu.device)?,
            device: gpu.device,
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
    ///
    /// # Safety
    /// `session` is the one that this was made for, and live.
    pub(super) unsafe fn run(
        &mut self,
        session: NonNull<OrtSession>,
        options: &RunOptions,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        // SAFETY: by this function's contract.
        let made = unsafe { self.run_once(session, options, feeds, targets) };
        if let (Err(_), Some(stream)) = (&made, &self.stream) {
            // Kernels that were started before the error read the feeds. A stream that cannot be
            // waited for is one whose context is gone, and its work with it.
            let _ = stream.synchronize();
        }
        made
    }

    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn run_once(
        &mut self,
        session: NonNull<OrtSession>,
        options: &RunOptions,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        let runtime = Arc::clone(&self.place.runtime);
        let place = self.place.raw;
        if let (Some(graphs), Some(stream)) = (&mut self.graphs, &self.stream) {
            let graph = graphs.of(feeds, targets)?;
            options.set_graph(graph.as_ref().map_or(NO_GRAPH, |graph| graph.id))?;
            if let Some(graph) = graph {
                let mut bound = self.binding.begin();
                let session = (session, options);
                // SAFETY: by this function's contract.
                let values = unsafe {
                    replay(
                        &runtime, session, &mut bound, graph, place, stream, feeds, targets,
                    )?
                };
                let on_device = |value: Value<'static>| Some(value.on_device(self.device));
                return Ok(values.into_iter().map(on_device).collect());
            }
        }
        let mut bound = self.binding.begin();
        // Values are released after the bindings of the run, which hold them by references of their
        // own, so their order does not matter.
        let mut inputs = Vec::with_capacity(feeds.len());
        for feed in feeds {
            let value = match feed.data {
                FeedData::Host(_) => Value::borrow(&runtime, feed)?,
                FeedData::Device(bytes) => Value::borrow_on_device(&runtime, place, feed, bytes)?,
            };
            bound.input(feed.name, &value)?;
            inputs.push(value);
        }
        let mut is_made = Vec::with_capacity(targets.len());
        let mut outputs = Vec::with_capacity(targets.len());
        for target in targets {
            let data_type = target.info.data_type;
            let made = bind(&mut bound, &runtime, place, target)?;
            is_made.push(match made {
                Some(value) => {
                    outputs.push(value);
                    Made::InPlace
                }
                None if data_type == DataType::Bytes => Made::OnHost,
                None => Made::OnDevice,
            });
        }
        // SAFETY: session, options and binding are live; values borrow memory that `feeds` and
        // `targets` keep until after this call.
        unsafe {
            let table = &runtime.table;
            let status =
                (table.run_with_binding)(session.as_ptr(), options.as_ptr(), bound.as_ptr());
            table.check(status)?;
        }
        let found = outputs_of(&bound, is_made.len())?.into_iter().zip(is_made);
        Ok(found
            .map(|(value, made)| match made {
                Made::InPlace => None,
                Made::OnHost => Some(value),
                Made::OnDevice => Some(value.on_device(self.device)),
            })
            .collect())
    }
}

/// Runs the session on the memory of a graph. What is returned lies there, until its next run.
///
/// # Safety
/// The session is the one that the binding was made for, and live.
#[allow(
    clippy::too_many_arguments,
    reason = "all of them are parts of one run"
)]
unsafe fn replay(
    runtime: &Arc<Runtime>,
    (session, options): (NonNull<OrtSession>, &RunOptions),
    bound: &mut Bound<'_>,
    graph: &mut Graph,
    place: NonNull<OrtMemoryInfo>,
    stream: &StreamHandle,
    feeds: &[Feed<'_>],
    targets: &[Target<'_, '_>],
) -> Result<Vec<Value<'static>>, Error> {
    // SAFETY: the feeds stay until the run has returned, which waits for the stream.
    unsafe { graph.fill(stream, feeds)? };
    let mut inputs = Vec::with_capacity(feeds.len());
    for (feed, block) in feeds.iter().zip(&graph.inputs) {
        let value = Value::borrow_on_device(runtime, place, feed, block.source())?;
        bound.input(feed.name, &value)?;
        inputs.push(value);
    }
    let mut memory = Vec::with_capacity(targets.len());
    for (shape, block) in &mut graph.outputs {
        memory.push((&*shape, block.target()?));
    }
    let mut outputs = Vec::with_capacity(targets.len());
    for (target, (shape, memory)) in targets.iter().zip(&mut memory) {
        let data_type = target.info.data_type;
        let value = Value::over_on_device(runtime, place, data_type, shape, memory)?;
        bound.output(&target.info.name, &value)?;
        outputs.push(value);
    }
    // SAFETY: session, options and binding are live; values lie in memory of the graph.
    unsafe {
        let table = &runtime.table;
        let status = (table.run_with_binding)(session.as_ptr(), options.as_ptr(), bound.as_ptr());
        table.check(status)?;
    }
    outputs_of(bound, targets.len())
}

/// What a run has made, for each output that was bound.
fn outputs_of(bound: &Bound<'_>, count: usize) -> Result<Vec<Value<'static>>, Error> {
    let values = bound.outputs()?;
    match values.len() == count {
        true => Ok(values),
        false => Err(Error::internal(
            "Retrieved output count is not equal to expected count.",
        )),
    }
}

/// Where an output of a run is.
enum Made {
    /// In the target's own memory.
    InPlace,
    OnHost,
    OnDevice,
}

/// Binds an output: to memory of its own, for which it returns the value, or to the GPU. Strings
/// are only ever in main memory.
fn bind<'t>(
    bound: &mut Bound<'_>,
    runtime: &Arc<Runtime>,
    place: NonNull<OrtMemoryInfo>,
    target: &'t mut Target<'_, '_>,
) -> Result<Option<Value<'t>>, Error> {
    let info = target.info;
    let Some(memory) = &mut target.memory else {
        let place = match info.data_type {
            DataType::Bytes => runtime.memory_info,
            _ => place,
        };
        bound.output_in(&info.name, place)?;
        return Ok(None);
    };
    let shape = &memory.shape;
    let value = match &mut memory.room {
        Room::Host(buffer) => Value::over(runtime, info.data_type, shape, buffer)?,
        Room::Device(target) => {
            Value::over_on_device(runtime, place, info.data_type, shape, target)?
        }
    };
    bound.output(&info.name, &value)?;
    Ok(Some(value))
}

/// How ONNX Runtime describes the memory of a GPU.
struct DevicePlace {
    runtime: Arc<Runtime>,
    raw: NonNull<OrtMemoryInfo>,
}

impl DevicePlace {
    fn new(runtime: &Arc<Runtime>, device: i32) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the name is NUL-terminated and copied, the result writable.
        unsafe {
            table.check((table.create_memory_info)(
                c"Cuda".as_ptr(),
                ARENA_ALLOCATOR,
                device,
                MEMORY_TYPE_DEFAULT,
                &raw mut raw,
            ))?;
        }
        let raw = NonNull::new(raw);
        Ok(DevicePlace {
            runtime: Arc::clone(runtime),
            raw: raw.ok_or_else(|| Error::internal("ONNX Runtime described no memory"))?,
        })
    }
}

impl Drop for DevicePlace {
    fn drop(&mut self) {
        // SAFETY: ours; what was made with it has copied it.
        unsafe { (self.runtime.table.release_memory_info)(self.raw.as_ptr()) };
    }
}
