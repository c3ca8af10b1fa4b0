//! The execution providers of sessions on a GPU: CUDA, and TensorRT before it.
//!
//! Each is a library of its own beside ONNX Runtime's, which opens it when the first option is set,
//! and with it NVIDIA's libraries.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use conch_backend_sdk as sdk;
use sdk::engine::text_at;
use sdk::{Error, StreamHandle};

use super::graphs::GraphOptions;
use super::runtime::Runtime;
use super::table::{OrtCudaOptions, OrtSessionOptions, OrtTensorRtOptions, Status};

/// Options of a provider, under ONNX Runtime's names.
pub type Entries = Vec<(CString, CString)>;

/// The GPU of a session.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub device: i32,
    /// What the session enqueues its work on; none: a stream of its own, for sessions that only
    /// tell a signature.
    pub stream: Option<StreamHandle>,
    pub cuda: Entries,
    /// Tried before CUDA.
    pub tensorrt: Option<Entries>,
    /// Where runs are captured as CUDA graphs, which `cuda` switches on as well.
    pub graphs: Option<GraphOptions>,
}

/// The provider CUDA, as [`Runtime::has_provider`] knows it.
pub const CUDA: &str = "CUDA";
/// The provider TensorRT, as [`Runtime::has_provider`] knows it.
pub const TENSORRT: &str = "Tensorrt";

/// Key of the option that hands a provider a stream.
const STREAM: &CStr = c"user_compute_stream";

/// Appends the providers of a GPU to the options of a session.
///
/// # Errors
/// `Unavailable` if this library of ONNX Runtime is without a provider, or a library that the
/// provider needs is missing; `Internal` with ONNX Runtime's own words.
///
/// # Safety
/// `session` is live.
pub(super) unsafe fn append(
    runtime: &Runtime,
    gpu: &Gpu,
    session: *mut OrtSessionOptions,
    model: &CStr,
) -> Result<(), Error> {
    let model = model.to_string_lossy();
    if let Some(entries) = &gpu.tensorrt {
        let options = TensorRtOptions::new(runtime)?;
        options.set(gpu, entries)?;
        // SAFETY: both are live; the options are copied.
        let appended = unsafe {
            let status = (runtime.table.append_tensorrt)(session, options.raw);
            runtime.table.check(status)
        };
        appended.map_err(|error| without(runtime, "TensorRT", &error))?;
        sdk::verbose!(
            "TensorRT Execution Accelerator is set for '{model}' on device {}",
            gpu.device
        );
    }
    let options = CudaOptions::new(runtime)?;
    options.set(gpu)?;
    // SAFETY: as above.
    let appended = unsafe {
        let status = (runtime.table.append_cuda)(session, options.raw);
        runtime.table.check(status)
    };
    appended.map_err(|error| without(runtime, "CUDA", &error))?;
    if sdk::log::is_enabled(sdk::log::Level::Verbose) {
        sdk::verbose!(
            "CUDA Execution Accelerator is set for '{model}' on device {} with options: {}",
            gpu.device,
            options.text()?
        );
    }
    Ok(())
}

/// What a provider cannot be used for, and what to do. ONNX Runtime tells it behind the place in
/// its own source.
fn without(runtime: &Runtime, provider: &str, error: &Error) -> Error {
    let text = error.message();
    let Some((_, why)) = text.split_once("Failed to load library ") else {
        return error.clone();
    };
    let why = why.trim_end();
    Error::unavailable(format!(
        "the {provider} execution provider of {runtime:?} cannot be used: {why}; install NVIDIA's \
         libraries of the version that it names (CUDA and cuDNN{}), where the loader finds them \
         (LD_LIBRARY_PATH), or set kind: KIND_CPU in the model's instance_group",
        if provider == "CUDA" { "" } else { ", TensorRT" }
    ))
}

/// Text in the arrays that the C API takes.
struct Arrays {
    keys: Vec<*const c_char>,
    values: Vec<*const c_char>,
}

impl Arrays {
    fn of(entries: &[(CString, CString)]) -> Self {
        Arrays {
            keys: entries.iter().map(|(key, _)| key.as_ptr()).collect(),
            values: entries.iter().map(|(_, value)| value.as_ptr()).collect(),
        }
    }
}

/// The entries, and those that say where the session runs, which nothing overrides.
fn placed(gpu: &Gpu, entries: &[(CString, CString)]) -> Result<Entries, Error> {
    let own = [c"device_id", c"has_user_compute_stream", STREAM];
    let mut placed: Entries = entries
        .iter()
        .filter(|(key, _)| !own.contains(&key.as_c_str()))
        .cloned()
        .collect();
    placed.push((
        c"device_id".to_owned(),
        sdk::engine::c_string(&gpu.device.to_string())?,
    ));
    if gpu.stream.is_some() {
        placed.push((c"has_user_compute_stream".to_owned(), c"1".to_owned()));
    }
    Ok(placed)
}

struct CudaOptions<'r> {
    runtime: &'r Runtime,
    raw: *mut OrtCudaOptions,
}

impl<'r> CudaOptions<'r> {
    fn new(runtime: &'r Runtime) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable; the wrapper releases it.
        unsafe { table.check((table.create_cuda_options)(&raw mut raw))? };
        Ok(CudaOptions { runtime, raw })
    }

    fn set(&self, gpu: &Gpu) -> Result<(), Error> {
        let table = &self.runtime.table;
        let entries = placed(gpu, &gpu.cuda)?;
        let arrays = Arrays::of(&entries);
        let (keys, values) = (arrays.keys.as_ptr(), arrays.values.as_ptr());
        // SAFETY: the options are live; the texts are NUL-terminated and copied, the arrays as long
        // as said.
        let set = unsafe {
            let status = (table.update_cuda_options)(self.raw, keys, values, entries.len());
            table.check(status)
        };
        set.map_err(|error| without(self.runtime, "CUDA", &error))?;
        let Some(stream) = &gpu.stream else {
            return Ok(());
        };
        // SAFETY: the options are live. The stream outlives the session, which keeps its handle.
        unsafe {
            let status = (table.set_cuda_pointer)(self.raw, STREAM.as_ptr(), stream.raw());
            table.check(status)
        }
    }

    /// All options, as ONNX Runtime writes them.
    fn text(&self) -> Result<String, Error> {
        let table = &self.runtime.table;
        let allocator = self.runtime.allocator.as_ptr();
        let mut text = ptr::null_mut();
        // SAFETY: options and allocator are live, the result writable; the text is ours,
        // NUL-terminated, and freed after it was read.
        unsafe {
            let status = (table.cuda_options_text)(self.raw, allocator, &raw mut text);
            table.check(status)?;
            let read = text_at(text);
            table.check((table.allocator_free)(allocator, text.cast::<c_void>()))?;
            Ok(read)
        }
    }
}

impl Drop for CudaOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; options of sessions have copied them.
        unsafe { (self.runtime.table.release_cuda_options)(self.raw) };
    }
}

struct TensorRtOptions<'r> {
    runtime: &'r Runtime,
    raw: *mut OrtTensorRtOptions,
}

impl<'r> TensorRtOptions<'r> {
    fn new(runtime: &'r Runtime) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable; the wrapper releases it.
        unsafe { table.check((table.create_tensorrt_options)(&raw mut raw))? };
        Ok(TensorRtOptions { runtime, raw })
    }

    fn set(&self, gpu: &Gpu, entries: &[(CString, CString)]) -> Result<(), Error> {
        let table = &self.runtime.table;
        let entries = placed(gpu, entries)?;
        let arrays = Arrays::of(&entries);
        let (keys, values) = (arrays.keys.as_ptr(), arrays.values.as_ptr());
        // SAFETY: as for CUDA.
        let set = unsafe {
            let status = (table.update_tensorrt_options)(self.raw, keys, values, entries.len());
            table.check(status)
        };
        set.map_err(|error| without(self.runtime, "TensorRT", &error))?;
        let Some(stream) = &gpu.stream else {
            return Ok(());
        };
        // SAFETY: as for CUDA.
        unsafe {
            let status: Status =
                (table.set_tensorrt_pointer)(self.raw, STREAM.as_ptr(), stream.raw());
            table.check(status)
        }
    }
}

impl Drop for TensorRtOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; options of sessions have copied them.
        unsafe { (self.runtime.table.release_tensorrt_options)(self.raw) };
    }
}
