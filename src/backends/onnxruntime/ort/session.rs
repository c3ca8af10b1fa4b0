//! A loaded model.

use std::ffi::CString;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Feed, OutputBuffer, Signature, Target, c_path};
use sdk::{DeviceWork, Error, Interrupt};

use super::options::SessionOptions;
use super::providers::Gpu;
use super::raw_session::RawSession;
use super::run_options::RunOptions;
use super::runtime::Runtime;
use super::signature::read_signature;
use super::value::Value;

/// A model loaded into ONNX Runtime. Used by one thread at a time here.
pub struct Session {
    session: RawSession,
    run_options: Arc<RunOptions>,
    signature: Signature,
    has_tensorrt: bool,
    /// Where execution providers have a part.
    renewal: Option<Box<Renewal>>,
}

/// How a session is made anew. A run that fails in OpenVINO's provider, for the shapes of its
/// inputs, can leave them behind, and later runs fail or answer with them.
struct Renewal {
    path: CString,
    options: SessionOptions,
    gpu: Option<Gpu>,
    is_due: bool,
}

impl Session {
    /// # Errors
    /// `Internal` with ONNX Runtime's own words; `Unsupported` if an input or output is no tensor
    /// that Triton knows.
    pub fn load(
        runtime: &Arc<Runtime>,
        model: &Path,
        options: &SessionOptions,
        gpu: Option<&Gpu>,
    ) -> Result<Self, Error> {
        let has_graphs = gpu.is_some_and(|gpu| gpu.graphs.is_some());
        let run_options = RunOptions::new(runtime, &options.run_entries, has_graphs)?;
        let path = c_path(model)?;
        let session = RawSession::create(runtime, &path, options, gpu)?;
        Ok(Session {
            signature: read_signature(&session)?,
            session,
            has_tensorrt: gpu.is_some_and(|gpu| gpu.tensorrt.is_some()),
            run_options: Arc::new(run_options),
            renewal: (!options.providers.is_empty()).then(|| {
                Box::new(Renewal {
                    path,
                    options: options.clone(),
                    gpu: gpu.cloned(),
                    is_due: false,
                })
            }),
        })
    }

    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Whether outputs can be written into memory of responses.
    pub fn writes_in_place(&self) -> bool {
        self.session
            .device
            .as_ref()
            .is_none_or(|device| device.writes_in_place())
    }

    /// Why a run on its GPU cannot be left on the stream; none if it can. Where operators read main
    /// memory, a run waits for the GPU, and memory between the two is only kept until it returns.
    pub fn in_flight_obstacle(&self) -> Option<String> {
        let placement = self.session.placement;
        let copy_count = placement.copy_count;
        if copy_count > 0 {
            let copies = if copy_count == 1 { "copy" } else { "copies" };
            return Some(format!(
                "ONNX Runtime has {copy_count} {copies} between the GPU and operators on the CPU \
                 within its graph"
            ));
        }
        (self.has_tensorrt && !placement.is_whole_on_tensorrt())
            .then(|| "TensorRT does not run its whole graph".to_owned())
    }

    /// Enqueues a run on the stream of `work`, which is that of the session.
    ///
    /// # Errors
    /// As [`run`](Self::run); `Internal` for a session on CPUs, and for what the driver refuses.
    pub fn enqueue<'m>(
        &mut self,
        work: &mut DeviceWork<'m>,
        feeds: &[Feed<'m>],
        targets: &mut [Target<'_, 'm>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        match &mut self.session.device {
            Some(device) => device.enqueue(&self.run_options, work, feeds, targets),
            None => Err(Error::internal("a session on CPUs enqueues nothing")),
        }
    }

    /// What ends a run that is going on.
    pub fn interrupt(&self) -> Arc<dyn Interrupt> {
        Arc::clone(&self.run_options) as Arc<dyn Interrupt>
    }

    /// Runs the model on `feeds` and returns the outputs of `targets`, in their order: `None` where
    /// a target had memory of its own. After a run that failed where execution providers have a
    /// part, the session is made anew first, which takes as long as loading the model.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words; `InvalidArgument` if a string tensor's bytes do
    /// not fit its shape.
    pub fn run(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        self.renew_if_due()?;
        let made = match &mut self.session.device {
            Some(device) => device.run(&self.run_options, feeds, targets),
            None => self.run_once(feeds, targets),
        };
        if let Some(renewal) = &mut self.renewal {
            // A run that was ended was so between two nodes of the graph, not within a provider.
            renewal.is_due = made.is_err() && !self.run_options.is_interrupted();
        }
        made
    }

    fn renew_if_due(&mut self) -> Result<(), Error> {
        let Some(renewal) = self.renewal.as_mut().filter(|renewal| renewal.is_due) else {
            return Ok(());
        };
        let gpu = renewal.gpu.as_ref();
        let runtime = &self.session.runtime;
        let fresh = RawSession::create(runtime, &renewal.path, &renewal.options, gpu)?;
        renewal.is_due = false;
        self.session = fresh;
        Ok(())
    }

    fn run_once(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Value<'static>>>, Error> {
        let runtime = &self.session.runtime;
        let table = &runtime.table;
        let inputs = feeds
            .iter()
            .map(|feed| Value::borrow(runtime, feed))
            .collect::<Result<Vec<_>, _>>()?;
        let wanted: Vec<_> = targets.iter().map(|target| target.info).collect();
        let outputs = targets
            .iter_mut()
            .map(|target| {
                let info = target.info;
                target
                    .memory
                    .as_mut()
                    .map(|memory| {
                        let OutputBuffer::Host(buffer) = &mut memory.buffer else {
                            return Err(Error::internal("an output on a GPU of a CPU session"));
                        };
                        Value::over(runtime, info.data_type, &memory.shape, buffer)
                    })
                    .transpose()
            })
            .collect::<Result<Vec<_>, _>>()?;
        let input_names: Vec<_> = feeds.iter().map(|feed| feed.name.as_ptr()).collect();
        let output_names: Vec<_> = wanted.iter().map(|info| info.name.as_ptr()).collect();
        let input_values: Vec<_> = inputs
            .iter()
            .map(|value| value.as_ptr().cast_const())
            .collect();
        let mut output_values: Vec<_> = outputs
            .iter()
            .map(|value| value.as_ref().map_or(ptr::null_mut(), Value::as_ptr))
            .collect();
        // SAFETY: session, options and values are live; the arrays have the lengths given; input
        // values borrow memory that `feeds` keeps, output values memory that `targets` keep, until
        // after this call.
        let status = unsafe {
            (table.run)(
                self.session.raw.as_ptr(),
                self.run_options.ordinary().as_ptr(),
                input_names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                output_values.as_mut_ptr(),
            )
        };
        // SAFETY: the status is ours. A failed run makes no values.
        unsafe { table.check(status)? };
        // Every value made by the run is owned before anything can fail, so that none leaks.
        let made: Vec<Option<Option<Value<'static>>>> = outputs
            .iter()
            .zip(output_values)
            .map(|(own, value)| match own {
                Some(_) => Some(None),
                None => NonNull::new(value).map(|value| {
                    // SAFETY: made by the run, ours from now on.
                    Some(unsafe { Value::own(runtime, value) })
                }),
            })
            .collect();
        made.into_iter()
            .zip(wanted)
            .map(|(value, info)| {
                value.ok_or_else(|| {
                    Error::internal(format!(
                        "output tensor '{}' is not found",
                        info.name.to_string_lossy()
                    ))
                })
            })
            .collect()
    }
}
