//! The opened `libtorch_cpu.so` and what is used of its C interface.

use std::cell::Cell;
use std::env;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::{LibraryPlace, OnlyEngine, text_at};

use super::cuda::CudaFunctions;
use super::library::{RawTensor, Version, open};
use super::shim::Shim;

/// Where libtorch is.
pub const PLACE: LibraryPlace = LibraryPlace {
    backend: "pytorch",
    product: "PyTorch",
    variable: "CONCH_PYTORCH_LIBRARY",
    settings: &["library"],
    stem: "libtorch_cpu.so",
    package: None,
};

/// Where the shim is, if not beside libtorch.
const SHIM_NAME: &str = "libconch_torch.so";

/// The oldest torch that this was tested with, and the first whose C interface says its version.
const OLDEST: Version = Version {
    major: 2,
    minor: 10,
    patch: 0,
};

/// Checks the sizes, strides and types of their inputs in models that AOTInductor compiled. It
/// compiles these checks into each model, and leaves them out at run time unless this is set.
/// Without them a request of another shape makes the model read outside of its input.
pub const CHECK_VARIABLE: &str = "AOTI_RUNTIME_CHECK_INPUTS";

/// Error code of torch's C interface; 0 is success.
type Status = i32;

sdk::functions! {
    /// The functions in use. Contracts are those of `aoti_torch/c/shim.h`.
    pub(super) struct Functions;

    unsafe extern "C" {
        aoti_torch_empty_strided as empty_strided(
            i64, *const i64, *const i64, i32, i32, i32, *mut *mut RawTensor
        ) -> Status;
        aoti_torch_create_tensor_from_blob as from_blob(
            *mut c_void, i64, *const i64, *const i64, i64, i32, i32, i32, *mut *mut RawTensor
        ) -> Status;
        aoti_torch_get_data_ptr as data_ptr(*mut RawTensor, *mut *mut c_void) -> Status;
        aoti_torch_get_dim as dim(*mut RawTensor, *mut i64) -> Status;
        aoti_torch_get_sizes as sizes(*mut RawTensor, *mut *mut i64) -> Status;
        aoti_torch_get_strides as strides(*mut RawTensor, *mut *mut i64) -> Status;
        aoti_torch_get_dtype as dtype(*mut RawTensor, *mut i32) -> Status;
        aoti_torch_get_device_type as device_type(*mut RawTensor, *mut i32) -> Status;
        aoti_torch_get_device_index as device_index(*mut RawTensor, *mut i32) -> Status;
        aoti_torch_delete_tensor_object as delete(*mut RawTensor) -> Status;
        // `void at::set_num_threads(int)`, which has no C name. Throws for counts below 1 alone.
        _ZN2at15set_num_threadsEi as set_num_threads(c_int);
        aoti_torch_abi_version as abi_version() -> u64;
    }
    optional {
        /// Text of the last error on this thread, where this torch keeps it.
        torch_exception_get_what_without_backtrace as exception_what() -> *const c_char;
    }
}

/// An opened libtorch. There is one per process: a second one would share libraries with the first
/// and mix versions.
pub struct Torch {
    pub(super) functions: Functions,
    version: Version,
    path: PathBuf,
    /// The shim, or why there is none.
    shim: Result<Shim, Error>,
    /// What it has for GPUs, or why nothing; opened for the first instance on one.
    cuda: OnceLock<Result<CudaFunctions, Error>>,
}

/// The one that is open.
static OPENED: OnlyEngine<Torch> = OnlyEngine::new(PLACE);

thread_local! {
    /// Threads that torch was told to use on this one.
    static THREADS: Cell<c_int> = const { Cell::new(0) };
}

impl Torch {
    /// Opens the library at `path`, and the shim: at `shim`, or beside the library, or in
    /// `directory`.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be opened, is too old, or another one is open already. A shim
    /// that is missing or does not fit is an error of the first model that needs it.
    pub fn open(path: &Path, shim: Option<&Path>, directory: &Path) -> Result<Arc<Self>, Error> {
        OPENED.get(path, |_| Torch::load(path, shim, directory))
    }

    fn load(path: &Path, shim: Option<&Path>, directory: &Path) -> Result<Self, Error> {
        // SAFETY: initialisers of libtorch run; it is the library that was asked for.
        let library = unsafe { open(path)? };
        // SAFETY: the functions have these types in every torch that has them.
        let functions = unsafe { Functions::read(library) }.map_err(|symbol| {
            Error::unavailable(format!(
                "the torch library has no function {symbol}; torch {OLDEST} or later is needed"
            ))
        })?;
        // SAFETY: it takes nothing and only returns a number.
        let version = Version::unpack(unsafe { (functions.abi_version)() });
        if version < OLDEST {
            return Err(Error::unavailable(format!(
                "{} is torch {version}; torch {OLDEST} or later is needed",
                path.display()
            )));
        }
        Ok(Torch {
            functions,
            version,
            path: path.to_owned(),
            shim: find_shim(path, shim, directory).and_then(|shim| Shim::open(&shim, version)),
            cuda: OnceLock::new(),
        })
    }

    /// One line for the log.
    pub fn describe(&self) -> String {
        let shim = match &self.shim {
            Ok(_) => "with its shim for TorchScript".to_owned(),
            Err(error) => format!("without a shim for TorchScript ({})", error.message()),
        };
        format!("torch {} at {}, {shim}", self.version, self.path.display())
    }

    /// # Errors
    /// Why there is none.
    pub(super) fn shim(&self) -> Result<&Shim, Error> {
        self.shim.as_ref().map_err(Clone::clone)
    }

    /// # Errors
    /// Why it has nothing for GPUs.
    pub(super) fn cuda(&self) -> Result<&CudaFunctions, Error> {
        let opened = self.cuda.get_or_init(|| CudaFunctions::open(&self.path));
        opened.as_ref().map_err(Clone::clone)
    }

    /// How many threads operators use that are called on this thread, itself among them. Each
    /// thread that calls torch has a pool of its own.
    pub fn use_threads(&self, count: c_int) {
        let count = count.max(1);
        THREADS.with(|threads| {
            if threads.replace(count) != count {
                // SAFETY: at least 1, for which it does not throw.
                unsafe { (self.functions.set_num_threads)(count) };
            }
        });
    }

    /// Makes an error of what a function of the C interface returned. `doing` is only written then.
    pub(super) fn check(&self, status: Status, doing: impl fmt::Display) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        let text = self.functions.exception_what.map(|what| {
            // SAFETY: it takes nothing; what it returns is read below, before torch is called again
            // on this thread.
            let text = unsafe { what() };
            // SAFETY: null, or NUL-terminated.
            unsafe { text_at(text) }.trim_end().to_owned()
        });
        Err(Error::internal(
            match text.filter(|text| !text.is_empty()) {
                Some(text) => format!("{doing}: {text}"),
                None => format!("{doing}: torch reports error {status}"),
            },
        ))
    }
}

impl fmt::Debug for Torch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.describe())
    }
}

fn find_shim(library: &Path, named: Option<&Path>, directory: &Path) -> Result<PathBuf, Error> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let beside = library.with_file_name(SHIM_NAME);
    let candidates = [beside, directory.join(SHIM_NAME)];
    let found = candidates.into_iter().find(|path| path.exists());
    found.ok_or_else(|| {
        Error::unavailable(format!(
            "there is no {SHIM_NAME} beside {}: run scripts/build-torch-shim, and name what it \
             prints in --backend-config=pytorch,shim=<path> or CONCH_PYTORCH_SHIM",
            library.display()
        ))
    })
}

/// Makes models that AOTInductor compiled check their inputs, and returns true, unless somebody
/// decided about that in the environment.
pub fn check_inputs_of_compiled_models() -> bool {
    static DECIDED: OnceLock<bool> = OnceLock::new();
    *DECIDED.get_or_init(|| {
        let is_open = env::var_os(CHECK_VARIABLE).is_none();
        if is_open {
            // SAFETY: once per process, when the backend starts and none of its models runs. The C
            // library copies the environment when it grows for the first time, and leaves what
            // other threads may be reading as it is.
            unsafe { env::set_var(CHECK_VARIABLE, "1") };
        }
        is_open
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_to_do_without_a_shim() {
        let library = Path::new("/nonexistent/libtorch_cpu.so");
        let missing = find_shim(library, None, Path::new("/nowhere")).unwrap_err();
        assert!(missing.message().contains("scripts/build-torch-shim"));
        let named = Path::new("/there/libconch_torch.so");
        assert_eq!(
            find_shim(library, Some(named), Path::new("/nowhere")),
            Ok(named.to_owned())
        );
    }
}
