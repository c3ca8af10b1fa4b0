//! Models that AOTInductor compiled: libraries with a C interface of their own
//! (`aoti_runtime/interface.h`), which call torch's.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::Error;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::library::{RawTensor, text_at};
use super::tensor::Tensor;
use super::torch::Torch;

/// Error code of the model's interface; 0 is success.
type Status = i32;

#[repr(C)]
struct RawContainer {
    opaque: [u8; 0],
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Functions {
            fn load(library: &Library) -> Result<Self, Error> {
                $(
                    // SAFETY: the function has this type in every model that has it.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> Status>($symbol)
                    };
                    let $name = *$name.map_err(|_| {
                        let name = String::from_utf8_lossy($symbol);
                        Error::invalid(format!(
                            "the compiled model has no function {}: was it made by an older torch?",
                            name.trim_end_matches('\0')
                        ))
                    })?;
                )*
                Ok(Functions { $($name),* })
            }
        }
    };
}

functions! {
    create = b"AOTInductorModelContainerCreateWithDevice\0"
        (*mut *mut RawContainer, usize, *const c_char, *const c_char);
    delete = b"AOTInductorModelContainerDelete\0" (*mut RawContainer);
    run = b"AOTInductorModelContainerRun\0"
        (*mut RawContainer, *mut *mut RawTensor, usize, *mut *mut RawTensor, usize, *mut c_void,
         *mut c_void);
    input_count = b"AOTInductorModelContainerGetNumInputs\0" (*mut RawContainer, *mut usize);
    output_count = b"AOTInductorModelContainerGetNumOutputs\0" (*mut RawContainer, *mut usize);
    constant_count = b"AOTInductorModelContainerGetNumConstants\0" (*mut RawContainer, *mut usize);
    call_spec = b"AOTInductorModelContainerGetCallSpec\0"
        (*mut RawContainer, *mut *const c_char, *mut *const c_char);
}

/// A function that some versions have.
type LastError = unsafe extern "C" fn(*mut *const c_char) -> Status;
/// The same: whether weights were found in the library.
type DidLoadConstants = unsafe extern "C" fn(*mut RawContainer, *mut bool) -> Status;

/// The library of a compiled model. Closed after its last container.
pub struct ModelLibrary {
    torch: Arc<Torch>,
    functions: Functions,
    last_error: Option<LastError>,
    did_load_constants: Option<DidLoadConstants>,
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
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library
            .map_err(|error| Error::invalid(format!("cannot open the compiled model: {error}")))?;
        let functions = Functions::load(&library)?;
        // SAFETY: the function has this type in every model that has it.
        let last_error = unsafe { library.get::<LastError>(b"AOTInductorGetLastError\0") };
        let last_error = last_error.ok().map(|function| *function);
        let symbol = b"AOTInductorModelContainerDidCallLoadConstants\0";
        // SAFETY: as above.
        let did_load_constants = unsafe { library.get::<DidLoadConstants>(symbol) };
        let did_load_constants = did_load_constants.ok().map(|function| *function);
        Ok(Arc::new(ModelLibrary {
            torch: Arc::clone(torch),
            functions,
            last_error,
            did_load_constants,
            _library: library,
        }))
    }

    fn check(&self, status: Status, doing: &str) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        let text = self.last_error.map(|last_error| {
            let mut text = ptr::null();
            // SAFETY: the result is writable; the text is read before the model is called again on
            // this thread.
            unsafe {
                last_error(&raw mut text);
                text_at(text)
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
pub struct Container {
    library: Arc<ModelLibrary>,
    raw: NonNull<RawContainer>,
    input_count: usize,
    output_count: usize,
}

// SAFETY: containers may be used from any thread.
unsafe impl Send for Container {}
// SAFETY: and by several at once: a container has a lock, and as many models as runs at a time.
unsafe impl Sync for Container {}

impl Container {
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
        let mut container = Container {
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
        let Some(did_load_constants) = self.library.did_load_constants else {
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

impl Drop for Container {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody runs it. It reports no error that one could act on.
        unsafe { (self.library.functions.delete)(self.raw.as_ptr()) };
    }
}
