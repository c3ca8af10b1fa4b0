//! The execution providers of sessions on a GPU: CUDA, and TensorRT before it.
//!
//! Each is a library of its own beside ONNX Runtime's, which opens it when the first option is set,
//! and with it NVIDIA's libraries.

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr;

use conch_backend_sdk as sdk;
use sdk::engine::{c_string, text_at};
use sdk::{Error, StreamHandle};

use super::graphs::GraphOptions;
use super::runtime::Runtime;
use super::table::{OrtCudaOptions, OrtSessionOptions, OrtTensorRtOptions, Status, Table};

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
/// `Unavailable` if a library that a provider needs is missing; `Internal` with ONNX Runtime's own
/// words.
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
    let table = &runtime.table;
    if let Some(entries) = &gpu.tensorrt {
        let options = ProviderOptions::new(runtime, tensorrt_functions(table), gpu, entries)?;
        // SAFETY: by this function's contract.
        unsafe { options.append_to(session)? };
        sdk::verbose!(
            "TensorRT Execution Accelerator is set for '{model}' on device {}",
            gpu.device
        );
    }
    let options = ProviderOptions::new(runtime, cuda_functions(table), gpu, &gpu.cuda)?;
    // SAFETY: by this function's contract.
    unsafe { options.append_to(session)? };
    if sdk::log::is_enabled(sdk::log::Level::Verbose) {
        sdk::verbose!(
            "CUDA Execution Accelerator is set for '{model}' on device {} with options: {}",
            gpu.device,
            options.text()?
        );
    }
    Ok(())
}

/// The error of a provider. Where it lacks a library, which ONNX Runtime tells behind the place in
/// its own source, that and what to do.
fn provider_error(runtime: &Runtime, provider: &str, error: Error) -> Error {
    let text = error.message();
    let Some((_, why)) = text.split_once("Failed to load library ") else {
        return error;
    };
    let why = why.trim_end();
    Error::unavailable(format!(
        "the {provider} execution provider of {runtime:?} cannot be used: {why}; install NVIDIA's \
         libraries of the version that it names (CUDA and cuDNN{}), where the loader finds them \
         (LD_LIBRARY_PATH), or set kind: KIND_CPU in the model's instance_group",
        if provider == "CUDA" { "" } else { ", TensorRT" }
    ))
}

/// The keys and the values of entries as the C API takes them.
pub(super) struct EntryArrays<'e> {
    pub(super) keys: Vec<*const c_char>,
    pub(super) values: Vec<*const c_char>,
    entries: PhantomData<&'e CStr>,
}

impl<'e> EntryArrays<'e> {
    pub(super) fn of(entries: &'e [(CString, CString)]) -> Self {
        EntryArrays {
            keys: entries.iter().map(|(key, _)| key.as_ptr()).collect(),
            values: entries.iter().map(|(_, value)| value.as_ptr()).collect(),
            entries: PhantomData,
        }
    }
}

/// The entries, but for those that say where the session runs, which nothing overrides.
fn entries_on_device(gpu: &Gpu, entries: &[(CString, CString)]) -> Result<Entries, Error> {
    let own = [c"device_id", c"has_user_compute_stream", STREAM];
    let mut all: Entries = entries
        .iter()
        .filter(|(key, _)| !own.contains(&key.as_c_str()))
        .cloned()
        .collect();
    all.push((c"device_id".to_owned(), c_string(&gpu.device.to_string())?));
    if gpu.stream.is_some() {
        all.push((c"has_user_compute_stream".to_owned(), c"1".to_owned()));
    }
    Ok(all)
}

/// The functions of the C API for the options of one provider, of type `T`.
struct ProviderFunctions<T> {
    /// The provider's name in messages.
    name: &'static str,
    create: unsafe extern "C" fn(*mut *mut T) -> Status,
    update:
        unsafe extern "C" fn(*mut T, *const *const c_char, *const *const c_char, usize) -> Status,
    set_pointer: unsafe extern "C" fn(*mut T, *const c_char, *mut c_void) -> Status,
    append: unsafe extern "C" fn(*mut OrtSessionOptions, *const T) -> Status,
    release: unsafe extern "C" fn(*mut T),
}

fn cuda_functions(table: &Table) -> ProviderFunctions<OrtCudaOptions> {
    ProviderFunctions {
        name: "CUDA",
        create: table.create_cuda_options,
        update: table.update_cuda_options,
        set_pointer: table.set_cuda_pointer,
        append: table.append_cuda,
        release: table.release_cuda_options,
    }
}

fn tensorrt_functions(table: &Table) -> ProviderFunctions<OrtTensorRtOptions> {
    ProviderFunctions {
        name: "TensorRT",
        create: table.create_tensorrt_options,
        update: table.update_tensorrt_options,
        set_pointer: table.set_tensorrt_pointer,
        append: table.append_tensorrt,
        release: table.release_tensorrt_options,
    }
}

/// The options of one provider.
struct ProviderOptions<'r, T> {
    runtime: &'r Runtime,
    functions: ProviderFunctions<T>,
    raw: *mut T,
}

impl<'r, T> ProviderOptions<'r, T> {
    fn new(
        runtime: &'r Runtime,
        functions: ProviderFunctions<T>,
        gpu: &Gpu,
        entries: &[(CString, CString)],
    ) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable; the wrapper releases it.
        unsafe { table.check((functions.create)(&raw mut raw))? };
        let options = ProviderOptions {
            runtime,
            functions,
            raw,
        };
        let entries = entries_on_device(gpu, entries)?;
        let arrays = EntryArrays::of(&entries);
        let (keys, values) = (arrays.keys.as_ptr(), arrays.values.as_ptr());
        // SAFETY: the options are live; the texts are NUL-terminated and copied, the arrays as long
        // as said.
        options.check(unsafe { (options.functions.update)(raw, keys, values, entries.len()) })?;
        if let Some(stream) = &gpu.stream {
            let key = STREAM.as_ptr();
            // SAFETY: the options are live. The stream outlives the session, which keeps a handle.
            options.check(unsafe { (options.functions.set_pointer)(raw, key, stream.raw()) })?;
        }
        Ok(options)
    }

    /// # Safety
    /// `session` is live.
    unsafe fn append_to(&self, session: *mut OrtSessionOptions) -> Result<(), Error> {
        // SAFETY: both are live; the options are copied.
        self.check(unsafe { (self.functions.append)(session, self.raw) })
    }

    /// Takes over a status.
    fn check(&self, status: Status) -> Result<(), Error> {
        // SAFETY: what a function of the C API returned, which nobody else has.
        let checked = unsafe { self.runtime.table.check(status) };
        checked.map_err(|error| provider_error(self.runtime, self.functions.name, error))
    }
}

impl ProviderOptions<'_, OrtCudaOptions> {
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

impl<T> Drop for ProviderOptions<'_, T> {
    fn drop(&mut self) {
        // SAFETY: ours; options of sessions have copied them.
        unsafe { (self.functions.release)(self.raw) };
    }
}
