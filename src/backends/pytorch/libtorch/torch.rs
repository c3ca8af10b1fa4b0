//! The opened `libtorch_cpu.so` and what is used of its C interface.

use std::cell::Cell;
use std::env;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use conch_backend_sdk as sdk;
use libloading::os::unix::Library;
use sdk::Error;

use super::library::{RawTensor, Version, open, text_at};
use super::shim::Shim;

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

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions in use. Contracts are those of `aoti_torch/c/shim.h`.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn load(library: &Library) -> Result<Self, Error> {
                $(
                    // SAFETY: the function has this type in every torch that has it.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol)
                    };
                    let $name = *$name.map_err(|_| missing_function($symbol))?;
                )*
                Ok(Functions { $($name),* })
            }
        }
    };
}

functions! {
    empty_strided = b"aoti_torch_empty_strided\0"
        (i64, *const i64, *const i64, i32, i32, i32, *mut *mut RawTensor) -> Status;
    data_ptr = b"aoti_torch_get_data_ptr\0" (*mut RawTensor, *mut *mut c_void) -> Status;
    dim = b"aoti_torch_get_dim\0" (*mut RawTensor, *mut i64) -> Status;
    sizes = b"aoti_torch_get_sizes\0" (*mut RawTensor, *mut *mut i64) -> Status;
    strides = b"aoti_torch_get_strides\0" (*mut RawTensor, *mut *mut i64) -> Status;
    dtype = b"aoti_torch_get_dtype\0" (*mut RawTensor, *mut i32) -> Status;
    device_type = b"aoti_torch_get_device_type\0" (*mut RawTensor, *mut i32) -> Status;
    delete = b"aoti_torch_delete_tensor_object\0" (*mut RawTensor) -> Status;
    // `void at::set_num_threads(int)`, which has no C name. Throws for counts below 1 alone.
    set_num_threads = b"_ZN2at15set_num_threadsEi\0" (c_int);
}

fn missing_function(symbol: &[u8]) -> Error {
    let name = String::from_utf8_lossy(symbol.strip_suffix(b"\0").unwrap_or(symbol)).into_owned();
    Error::unavailable(format!(
        "the torch library has no function {name}; torch {OLDEST} or later is needed"
    ))
}

/// An opened libtorch. There is one per process: a second one would share libraries with the first
/// and mix versions.
pub struct Torch {
    pub(super) functions: Functions,
    /// Text of the last error on this thread, where this torch keeps it.
    what: Option<unsafe extern "C" fn() -> *const c_char>,
    version: Version,
    path: PathBuf,
    /// The shim, or why there is none.
    shim: Result<Shim, Error>,
}

/// The one that is open.
static OPENED: Mutex<Option<Arc<Torch>>> = Mutex::new(None);

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
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(torch) = &*opened {
            if torch.path == path {
                return Ok(Arc::clone(torch));
            }
            return Err(Error::unavailable(format!(
                "this process runs models with {} already, and cannot open {} besides",
                torch.path.display(),
                path.display()
            )));
        }
        // SAFETY: initialisers of libtorch run; it is the library that was asked for.
        let library = unsafe { open(path)? };
        let functions = Functions::load(library)?;
        let version = version_of(library)?;
        if version < OLDEST {
            return Err(Error::unavailable(format!(
                "{} is torch {version}; torch {OLDEST} or later is needed",
                path.display()
            )));
        }
        // SAFETY: the function has this type in every torch that has it.
        let what = unsafe { library.get(b"torch_exception_get_what_without_backtrace\0") };
        let torch = Arc::new(Torch {
            functions,
            what: what.ok().map(|what| *what),
            version,
            path: path.to_owned(),
            shim: find_shim(path, shim, directory).and_then(|shim| Shim::open(&shim, version)),
        });
        *opened = Some(Arc::clone(&torch));
        Ok(torch)
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

    /// Makes an error of what a function of the C interface returned.
    pub(super) fn check(&self, status: Status, doing: &str) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        let text = self.what.map(|what| {
            // SAFETY: it takes nothing; what it returns is read below, before torch is called again
            // on this thread.
            let text = unsafe { what() };
            // SAFETY: null, or NUL-terminated.
            unsafe { text_at(text) }
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

fn version_of(library: &Library) -> Result<Version, Error> {
    let symbol = b"aoti_torch_abi_version\0";
    // SAFETY: the function has this type in every torch that has it.
    let version = unsafe { library.get::<unsafe extern "C" fn() -> u64>(symbol) };
    let version = version.map_err(|_| missing_function(symbol))?;
    // SAFETY: it takes nothing and only returns a number.
    Ok(Version::unpack(unsafe { version() }))
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
