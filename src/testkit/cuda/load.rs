//! The double in a test's own process, as the driver's library that is found at run time.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The double that this process has loaded as `libcuda.so.1`. What this crate holds as an ordinary
/// dependency is another instance, without devices.
pub struct LoadedDouble {
    fail: FailFn,
    count: CountFn,
    set_copy_us: SetDelayFn,
    set_kernel_us: SetDelayFn,
}

type FailFn = unsafe extern "C" fn(*const c_char, u32, u32, u32);
type CountFn = unsafe extern "C" fn(*const c_char) -> u64;
type SetDelayFn = extern "C" fn(u64);

static LOADED: OnceLock<LoadedDouble> = OnceLock::new();

impl LoadedDouble {
    /// Loads the library, which cargo builds beside the tests of its dependents. Who looks for
    /// `libcuda.so.1` afterwards finds it by its SONAME. Later calls get the same, whatever their
    /// settings.
    ///
    /// # Panics
    /// If it is not there.
    pub fn get(settings: &str) -> &'static LoadedDouble {
        LOADED.get_or_init(|| {
            // SAFETY: tests call this before they start a thread that reads the environment.
            unsafe { std::env::set_var("CONCH_CUDA_DOUBLE", settings) };
            let path = library();
            // SAFETY: the library has no initialisers of its own.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            assert!(!handle.is_null(), "{path:?} cannot be loaded");
            // SAFETY: these are the types of the functions in `api::control`.
            unsafe {
                LoadedDouble {
                    fail: std::mem::transmute::<*mut c_void, FailFn>(symbol(
                        handle,
                        c"conch_cuda_double_fail",
                    )),
                    count: std::mem::transmute::<*mut c_void, CountFn>(symbol(
                        handle,
                        c"conch_cuda_double_count",
                    )),
                    set_copy_us: std::mem::transmute::<*mut c_void, SetDelayFn>(symbol(
                        handle,
                        c"conch_cuda_double_set_copy_us",
                    )),
                    set_kernel_us: std::mem::transmute::<*mut c_void, SetDelayFn>(symbol(
                        handle,
                        c"conch_cuda_double_set_kernel_us",
                    )),
                }
            }
        })
    }

    /// As `conch_cuda_double_fail`.
    pub fn fail(&self, name: &CStr, after: u32, count: u32, code: u32) {
        // SAFETY: the name is a C string.
        unsafe { (self.fail)(name.as_ptr(), after, count, code) }
    }

    /// As `conch_cuda_double_count`.
    pub fn count(&self, name: &CStr) -> u64 {
        // SAFETY: the name is a C string.
        unsafe { (self.count)(name.as_ptr()) }
    }

    /// As `conch_cuda_double_set_copy_us`.
    pub fn set_copy_us(&self, copy_us: u64) {
        (self.set_copy_us)(copy_us);
    }

    /// As `conch_cuda_double_set_kernel_us`.
    pub fn set_kernel_us(&self, kernel_us: u64) {
        (self.set_kernel_us)(kernel_us);
    }
}

fn library() -> CString {
    let program = std::env::current_exe().expect("a program knows its path");
    let path: PathBuf = program.with_file_name("libconch_testkit_cuda.so");
    CString::new(path.into_os_string().into_encoded_bytes()).expect("a path has no NUL")
}

/// # Safety
/// `handle` is a library's.
unsafe fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: by this function's contract; the name is a C string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!found.is_null(), "the double has no {name:?}");
    found
}
