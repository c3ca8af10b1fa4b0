//! A pipeline that was built and can run.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::{DataType, Error};

use super::Runtime;
use super::table::{
    EXEC_SIMPLE, FEED_NO_COPY, PipelineParams, PortDescription, RawPipeline, STORAGE_GPU,
};
use super::tensors::{InputList, Outputs};
use super::types::TYPES;

/// Where a pipeline runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The serialised pipeline must say so itself, see `pipeline_file`.
    Cpu,
    Gpu(i32),
}

/// What replaces the parameters of a serialised pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub device: Device,
    pub thread_count: usize,
    /// `None`: that of the pipeline.
    pub max_batch_size: Option<i32>,
}

impl Options {
    fn params(&self) -> PipelineParams {
        let mut params = PipelineParams {
            present: PipelineParams::NUM_THREADS | PipelineParams::PREFETCH,
            num_threads: c_int::try_from(self.thread_count).unwrap_or(c_int::MAX),
            // Each run is one batch, whose answers are waited for: nothing may run ahead.
            prefetch_cpu: 1,
            prefetch_gpu: 1,
            ..PipelineParams::default()
        };
        if let Some(size) = self.max_batch_size {
            params.present |= PipelineParams::MAX_BATCH_SIZE;
            params.max_batch_size = size;
        }
        match self.device {
            // Operators run on the thread that calls, instead of on one more that hands over: with
            // nothing to run ahead, and no device to overlap with, that is only a detour.
            Device::Cpu => {
                params.present |= PipelineParams::EXEC_TYPE;
                params.exec_type = EXEC_SIMPLE;
            }
            Device::Gpu(id) => {
                params.present |= PipelineParams::DEVICE_ID;
                params.device_id = id;
            }
        }
        params
    }
}

/// An input or output, as the pipeline declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: CString,
    pub is_on_gpu: bool,
    /// `None`: any.
    pub data_type: Option<DataType>,
    /// Dimensions of a sample; `None`: any number.
    pub dim_count: Option<usize>,
    /// What the dimensions mean, such as `HWC`, to be said with each sample.
    pub layout: Option<CString>,
}

impl Port {
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }
}

/// A pipeline, built.
pub struct Pipeline {
    runtime: Arc<Runtime>,
    raw: NonNull<RawPipeline>,
}

// SAFETY: a pipeline may be used by any thread, one at a time: all that use it borrow it mutably,
// or only read what was fixed when it was built.
unsafe impl Send for Pipeline {}

impl Pipeline {
    /// Makes a pipeline of its serialised form and builds it.
    ///
    /// # Errors
    /// What DALI says.
    pub fn build(
        runtime: &Arc<Runtime>,
        serialized: &[u8],
        options: &Options,
    ) -> Result<Self, Error> {
        let params = options.params();
        let mut raw = ptr::null_mut();
        // SAFETY: the bytes and parameters are only read, the result is writable.
        runtime.check(unsafe {
            (runtime.table.deserialize)(
                &raw mut raw,
                serialized.as_ptr().cast(),
                serialized.len(),
                &raw const params,
            )
        })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("DALI gave no pipeline"))?;
        let pipeline = Pipeline {
            runtime: Arc::clone(runtime),
            raw,
        };
        // SAFETY: live, and ours alone.
        runtime.check(unsafe { (runtime.table.build)(raw.as_ptr()) })?;
        Ok(pipeline)
    }

    /// The inputs, by name.
    ///
    /// # Errors
    /// What DALI says.
    pub fn inputs(&self) -> Result<Vec<Port>, Error> {
        let table = &self.runtime.table;
        self.ports(table.input_count, table.input)
    }

    /// The outputs, in the pipeline's order.
    ///
    /// # Errors
    /// What DALI says.
    pub fn outputs(&self) -> Result<Vec<Port>, Error> {
        let table = &self.runtime.table;
        self.ports(table.output_count, table.output)
    }

    fn ports(
        &self,
        count_of: unsafe extern "C" fn(*mut RawPipeline, *mut c_int) -> c_int,
        describe: unsafe extern "C" fn(*mut RawPipeline, *mut PortDescription, c_int) -> c_int,
    ) -> Result<Vec<Port>, Error> {
        let mut count = 0;
        // SAFETY: the pipeline is built, the result writable.
        let status = unsafe { count_of(self.raw.as_ptr(), &raw mut count) };
        self.runtime.check(status)?;
        (0..count)
            .map(|index| {
                let mut described = PortDescription {
                    name: ptr::null(),
                    device: 0,
                    present: 0,
                    data_type: 0,
                    dim_count: 0,
                    layout: ptr::null(),
                };
                // SAFETY: as above.
                let status = unsafe { describe(self.raw.as_ptr(), &raw mut described, index) };
                self.runtime.check(status)?;
                // SAFETY: its texts live as long as the pipeline.
                Ok(unsafe { port(&described) })
            })
            .collect()
    }

    /// Feeds an input for the next run. `id` names the batch in [`Outputs::trace`].
    ///
    /// # Errors
    /// What DALI says.
    pub fn feed(&mut self, name: &CStr, list: InputList<'_>, id: &CStr) -> Result<(), Error> {
        // SAFETY: the pipeline is built and borrowed uniquely; the texts are copied. DALI takes a
        // reference of its own to the list's memory, which this side does not write any more, as
        // the list ends here.
        self.runtime.check(unsafe {
            (self.runtime.table.feed)(
                self.raw.as_ptr(),
                name.as_ptr(),
                list.raw(),
                id.as_ptr(),
                FEED_NO_COPY,
                ptr::null(),
            )
        })
    }

    /// Runs once, with what was fed, and waits for the outputs.
    ///
    /// # Errors
    /// What DALI says. The pipeline cannot be used any more then.
    pub fn run(&mut self) -> Result<Outputs<'_>, Error> {
        let table = &self.runtime.table;
        // SAFETY: built, and borrowed uniquely. Earlier outputs borrowed it too, so they are gone.
        let status = unsafe { (table.run)(self.raw.as_ptr()) };
        self.runtime.check(status)?;
        let mut raw = ptr::null_mut();
        // SAFETY: as above; the result is writable.
        let status = unsafe { (table.pop_outputs)(self.raw.as_ptr(), &raw mut raw) };
        self.runtime.check(status)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("DALI gave no outputs"))?;
        // SAFETY: ours, and of this pipeline, which stays borrowed.
        Ok(unsafe { Outputs::new(&self.runtime, raw) })
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // SAFETY: ours; outputs borrow the pipeline, so they are gone.
        let destroyed = unsafe { (self.runtime.table.destroy)(self.raw.as_ptr()) };
        if let Err(error) = self.runtime.check(destroyed) {
            conch_backend_sdk::error!("failed to destroy a pipeline: {error}");
        }
    }
}

/// # Safety
/// The texts of `described` are null or NUL-terminated and live.
unsafe fn port(described: &PortDescription) -> Port {
    let text = |text: *const c_char| {
        // SAFETY: by this function's contract.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
    };
    Port {
        name: text(described.name).unwrap_or_default(),
        is_on_gpu: described.device == STORAGE_GPU,
        data_type: (described.present & 1 != 0)
            .then(|| TYPES.data_type(described.data_type))
            .flatten(),
        dim_count: (described.present & 2 != 0)
            .then(|| usize::try_from(described.dim_count).ok())
            .flatten(),
        layout: text(described.layout).filter(|layout| !layout.is_empty()),
    }
}
