//! The real library behind the double, and the functions of its table that the double calls.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// An object of the library; only its address matters here.
pub type Raw = *mut c_void;
/// Null is success.
pub type Status = *mut c_void;

/// Parameter, severity, category, id, code location, message.
pub type LogFunction =
    unsafe extern "C" fn(Raw, c_int, *const c_char, *const c_char, *const c_char, *const c_char);

/// Entries of the table that are handed on. Version 17 has more.
pub const ENTRY_COUNT: usize = 270;

/// What the library's only function returns.
#[repr(C)]
pub struct ApiBase {
    pub get_api: unsafe extern "C" fn(u32) -> *const *const c_void,
    pub get_version: unsafe extern "C" fn() -> *const c_char,
}

pub struct RealLibrary {
    base: *const ApiBase,
    table: *const *const c_void,
}

// SAFETY: both point to static memory of the library, which is never closed.
unsafe impl Send for RealLibrary {}
// SAFETY: as above.
unsafe impl Sync for RealLibrary {}

macro_rules! functions {
    ($($index:literal $name:ident ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl RealLibrary {
            $(
                /// # Safety
                /// As the function of the C API.
                #[allow(clippy::too_many_arguments, reason = "those of the C API")]
                pub unsafe fn $name(&self, $($argument: $type),*) -> $result {
                    type Function = unsafe extern "C" fn($($type),*) -> $result;
                    // SAFETY: the header gives the function at this index exactly this type; the
                    // rest is the caller's.
                    unsafe {
                        let function = self.table.add($index).read();
                        std::mem::transmute::<*const c_void, Function>(function)($($argument),*)
                    }
                }
            )*
        }
    };
}

functions! {
    0 create_status(code: c_int, message: *const c_char) -> Status;
    7 create_session(env: Raw, path: *const c_char, options: Raw, session: *mut Raw) -> Status;
    9 run(
        session: Raw, options: Raw, input_names: *const *const c_char, inputs: *const Raw,
        input_count: usize, output_names: *const *const c_char, output_count: usize,
        outputs: *mut Raw
    ) -> Status;
    30 input_count(session: Raw, count: *mut usize) -> Status;
    31 output_count(session: Raw, count: *mut usize) -> Status;
    33 input_type(session: Raw, index: usize, info: *mut Raw) -> Status;
    34 output_type(session: Raw, index: usize, info: *mut Raw) -> Status;
    36 input_name(session: Raw, index: usize, allocator: Raw, name: *mut *mut c_char) -> Status;
    37 output_name(session: Raw, index: usize, allocator: Raw, name: *mut *mut c_char) -> Status;
    49 create_tensor_with_data(
        info: Raw, data: *mut c_void, len: usize, shape: *const i64, rank: usize, element: c_int,
        value: *mut Raw
    ) -> Status;
    51 tensor_data(value: Raw, data: *mut *mut c_void) -> Status;
    55 cast_to_tensor_info(info: Raw, tensor: *mut Raw) -> Status;
    60 element_type(info: Raw, element: *mut c_int) -> Status;
    61 dimension_count(info: Raw, count: *mut usize) -> Status;
    62 dimensions(info: Raw, dims: *mut i64, count: usize) -> Status;
    63 symbolic_dimensions(info: Raw, names: *mut *const c_char, rank: usize) -> Status;
    65 tensor_info(value: Raw, info: *mut Raw) -> Status;
    68 create_memory_info(
        name: *const c_char, allocator: c_int, id: c_int, kind: c_int, info: *mut Raw
    ) -> Status;
    69 create_cpu_memory_info(allocator: c_int, kind: c_int, info: *mut Raw) -> Status;
    75 allocate(allocator: Raw, len: usize, memory: *mut *mut c_void) -> Status;
    76 free(allocator: Raw, memory: *mut c_void) -> Status;
    78 default_allocator(allocator: *mut Raw) -> Status;
    94 release_memory_info(info: Raw) -> ();
    95 release_session(session: Raw) -> ();
    96 release_value(value: Raw) -> ();
    97 release_run_options(options: Raw) -> ();
    98 release_type_info(info: Raw) -> ();
    99 release_tensor_info(info: Raw) -> ();
    100 release_session_options(options: Raw) -> ();
    4 create_env(
        function: LogFunction, parameter: Raw, severity: c_int, id: *const c_char, env: *mut Raw
    ) -> Status;
    151 create_env_with_threads(
        function: LogFunction, parameter: Raw, severity: c_int, id: *const c_char, options: Raw,
        env: *mut Raw
    ) -> Status;
    226 set_env_severity(env: Raw, severity: c_int) -> Status;
    165 add_run_config(options: Raw, key: *const c_char, value: *const c_char) -> Status;
}

impl RealLibrary {
    /// The library that the environment names; none if it cannot be opened.
    pub fn get() -> Option<&'static RealLibrary> {
        static REAL: OnceLock<Option<RealLibrary>> = OnceLock::new();
        REAL.get_or_init(RealLibrary::open).as_ref()
    }

    fn open() -> Option<RealLibrary> {
        let path = std::env::var_os("CONCH_ORT_DOUBLE_LIBRARY")?;
        let path = CString::new(path.into_encoded_bytes()).ok()?;
        // SAFETY: the path is a C string; the test means the library to be run in the process.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: the handle is open, the symbol a C string.
        let symbol = unsafe { libc::dlsym(handle, c"OrtGetApiBase".as_ptr()) };
        if symbol.is_null() {
            return None;
        }
        // SAFETY: the symbol has this type in every release.
        let base =
            unsafe { std::mem::transmute::<Raw, extern "C" fn() -> *const ApiBase>(symbol)() };
        // SAFETY: a static struct of the library; the version is one that it has.
        let table = unsafe { ((*base).get_api)(17) };
        (!table.is_null()).then_some(RealLibrary { base, table })
    }

    pub fn version(&self) -> *const c_char {
        // SAFETY: a static struct of the library.
        unsafe { ((*self.base).get_version)() }
    }

    /// The functions of the real table, by index.
    pub fn entries(&self) -> &'static [*const c_void] {
        // SAFETY: a static table with more entries.
        unsafe { std::slice::from_raw_parts(self.table, ENTRY_COUNT) }
    }

    /// A failure with a message.
    pub fn failure(&self, message: &str) -> Status {
        let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the text is a C string, and copied. Code 1 is a failure.
        unsafe { self.create_status(1, text.as_ptr()) }
    }
}

/// Null for `Ok`, else the failure.
pub fn status(outcome: Result<(), Failure>) -> Status {
    match outcome {
        Ok(()) => ptr::null_mut(),
        Err(Failure::Real(status)) => status,
        Err(Failure::Double(message)) => {
            RealLibrary::get().map_or(ptr::null_mut(), |real| real.failure(&message))
        }
    }
}

/// Why a function fails.
pub enum Failure {
    /// The real library's own status.
    Real(Status),
    Double(String),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Failure::Double(message)
    }
}

/// A status of the real library as a result.
pub fn check(status: Status) -> Result<(), Failure> {
    match status.is_null() {
        true => Ok(()),
        false => Err(Failure::Real(status)),
    }
}

/// The real library.
pub fn real() -> Result<&'static RealLibrary, Failure> {
    RealLibrary::get().ok_or_else(|| Failure::Double("there is no real library".to_owned()))
}

/// # Safety
/// `text` is null or a C string.
pub unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
