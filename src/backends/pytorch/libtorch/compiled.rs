//! Models that AOTInductor compiled: libraries with a C interface of their own
//! (`aoti_runtime/interface.h`), which call torch's.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::{Binding, Library, text_at};

use super::library::RawTensor;
use super::tensor::Tensor;
use super::torch::Torch;

/// Error code of the model's interface; 0 is success.
type Status = i32;

sdk::opaque_types! { RawContainer }

sdk::functions! {
    /// Contracts are those of `aoti_runtime/interface.h`.
    struct Functions;

    unsafe extern "C" {
        AOTInductorModelContainerCreateWithDevice as create(
            *mut *mut RawContainer, usize, *const c_char, *const c_char
        ) -> Status;
        AOTInductorModelContainerDelete as delete(*mut RawContainer) -> Status;
        AOTInductorModelContainerRun as run(
            *mut RawContainer, *mut *mut RawTensor, usize, *mut *mut RawTensor, usize, *mut c_void,
            *mut c_void
        ) -> Status;
        AOTInductorModelContainerGetNumInputs as input_count(
            *mut RawContainer, *mut usize
        ) -> Status;
        AOTInductorModelContainerGetNumOutputs as output_count(
            *mut RawContainer, *mut usize
        ) -> Status;
        AOTInductorModelContainerGetNumConstants as constant_count(
            *mut RawContainer, *mut usize
        ) -> Status;
        AOTInductorModelContainerGetCallSpec as call_spec(
            *mut RawContainer, *mut *const c_char, *mut *const c_char
        ) -> Status;
    }
    // Functions that some versions have.
    optional {
        AOTInductorGetLastError as last_error(*mut *const c_char) -> Status;
        /// Whether weights were found in the library.
        AOTInductorModelContainerDidCallLoadConstants as did_load_constants(
            *mut RawContainer, *mut bool
        ) -> Status;
    }
}

/// The library of a compiled model. Closed after its last container.
pub struct ModelLibrary {
    torch: Arc<Torch>,
    functions: Functions,
    _library: Library,
}

impl ModelLibrary {
    /// Opens the model's library. It is code, which runs from here on: a model of unknown origin is
    /// as dangerous as a program of unknown origin.
    ///
    /// # Errors
    /// `Invalid` with the linker's words if it cannot be opened, or is none of AOTInductor's.
    pub fn open(torch: &Arc<Torch>, path: &Path) -> Result<Arc<Self>, Error> {
        // SAFETY: its initialisers run; whoever put it into the repository is trusted with that.
        let library = unsafe { Library::open(path, Binding::Now) }
            .map_err(|why| Error::invalid(format!("cannot open the compiled model: {why}")))?;
        // SAFETY: the functions have these types in every model that has them.
        let functions = unsafe { Functions::read(&library) }.map_err(|symbol| {
            Error::invalid(format!(
                "the compiled model has no function {symbol}: was it made by an older torch?"
            ))
        })?;
        Ok(Arc::new(ModelLibrary {
            torch: Arc::clone(torch),
            functions,
            _library: library,
        }))
    }

    fn check(&self, status: Status, doing: &str) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        let text = self.functions.last_error.map(|last_error| {
            let mut text = ptr::null();
            // SAFETY: the result is writable; the text is read before the model is called again on
            // this thread.
            unsafe {
                last_error(&raw mut text);
                text_at(text).trim_end().to_owned()
            }
        });
        Err(Error::internal(
            match text.filter(|text| !text.is_empty()) {
                Some(text) => format!("{doing}: {text}"),
                None => format!("{doing}; the compiled model wrote why to standard error"),
            },
        ))
    }
}

/// One copy of a compiled model's state.
pub struct ModelContainer {
    library: Arc<ModelLibrary>,
    raw: NonNull<RawContainer>,
    input_count: usize,
    output_count: usize,
}

// SAFETY: containers may be used from any thread.
unsafe impl Send for ModelContainer {}
// SAFETY: and by several at once: a container has a lock, and as many models as runs at a time.
unsafe impl Sync for ModelContainer {}

impl ModelContainer {
    /// A container that runs so many batches at a time.
    ///
    /// # Errors
    /// `Internal` with the model's own words; `Unsupported` if its weights are not in its library.
    pub fn new(library: &Arc<ModelLibrary>, model_count: usize) -> Result<Self, Error> {
        let functions = &library.functions;
        let mut raw = ptr::null_mut();
        // SAFETY: the device is NUL-terminated, the result writable; the folder is one of kernels
        // of GPUs.
        let status = unsafe {
            (functions.create)(
                &raw mut raw,
                model_count.max(1),
                c"cpu".as_ptr(),
                ptr::null(),
            )
        };
        library.check(status, "cannot load the compiled model")?;
        let mut container = ModelContainer {
            library: Arc::clone(library),
            raw: NonNull::new(raw)
                .ok_or_else(|| Error::internal("the compiled model gave no container"))?,
            input_count: 0,
            output_count: 0,
        };
        container.input_count = container.count(functions.input_count)?;
        container.output_count = container.count(functions.output_count)?;
        if container.lacks_constants()? {
            return Err(Error::unsupported(
                "the compiled model's weights are not in its library; compile it with the \
                 inductor option aot_inductor.package_constants_in_so",
            ));
        }
        Ok(container)
    }

    pub fn input_count(&self) -> usize {
        self.input_count
    }

    pub fn output_count(&self) -> usize {
        self.output_count
    }

    /// What `forward` takes and returns, each a text in JSON.
    ///
    /// # Errors
    /// `Internal` with the model's own words.
    pub fn call_spec(&self) -> Result<(String, String), Error> {
        let (mut input, mut output) = (ptr::null(), ptr::null());
        // SAFETY: the container is live, the results are writable.
        let status = unsafe {
            (self.library.functions.call_spec)(self.raw.as_ptr(), &raw mut input, &raw mut output)
        };
        self.library.check(
            status,
            "cannot read the compiled model's call specification",
        )?;
        // SAFETY: texts of the container's, null or NUL-terminated.
        Ok(unsafe { (text_at(input), text_at(output)) })
    }

    /// Runs the model; `inputs` must be as many as it takes.
    ///
    /// # Errors
    /// `Internal` with the model's own words; `InvalidArgument` if inputs are missing.
    pub fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
        if inputs.len() != self.input_count {
            return Err(Error::invalid(format!(
                "the compiled model takes {} inputs, got {}",
                self.input_count,
                inputs.len()
            )));
        }
        // The model takes them over, whatever comes of it.
        let mut inputs: Vec<_> = inputs.into_iter().map(Tensor::into_raw).collect();
        let mut outputs = vec![ptr::null_mut(); self.output_count];
        // SAFETY: both arrays have the lengths that the model wants; there is no stream on a CPU,
        // and no operator that needs the proxy, by what was checked when the package was read.
        let status = unsafe {
            (self.library.functions.run)(
                self.raw.as_ptr(),
                inputs.as_mut_ptr(),
                inputs.len(),
                outputs.as_mut_ptr(),
                outputs.len(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        self.library.check(status, "PyTorch execute failure")?;
        let torch = &self.library.torch;
        outputs
            .into_iter()
            // SAFETY: the model gives its outputs away.
            .map(|raw| unsafe { Tensor::own(torch, raw) })
            .collect()
    }

    fn lacks_constants(&self) -> Result<bool, Error> {
        let Some(did_load_constants) = self.library.functions.did_load_constants else {
            return Ok(false);
        };
        let mut did_load = true;
        // SAFETY: the container is live, the result writable.
        let status = unsafe { did_load_constants(self.raw.as_ptr(), &raw mut did_load) };
        self.library
            .check(status, "cannot read the compiled model")?;
        Ok(!did_load && self.count(self.library.functions.constant_count)? > 0)
    }

    fn count(
        &self,
        function: unsafe extern "C" fn(*mut RawContainer, *mut usize) -> Status,
    ) -> Result<usize, Error> {
        let mut count = 0;
        // SAFETY: the container is live, the result writable.
        let status = unsafe { function(self.raw.as_ptr(), &raw mut count) };
        self.library
            .check(status, "cannot read the compiled model")?;
        Ok(count)
    }
}

impl Drop for ModelContainer {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody runs it. It reports no error that one could act on.
        unsafe { (self.library.functions.delete)(self.raw.as_ptr()) };
    }
}
