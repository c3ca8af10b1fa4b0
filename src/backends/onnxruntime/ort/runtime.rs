//! An opened ONNX Runtime library with its environment.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::{Library, LibraryPlace, text_at};
use sdk::log::Level;

use super::API_VERSION;
use super::placement;
use super::table::{EntryPoint, OrtAllocator, OrtEnv, OrtMemoryInfo, OrtThreadingOptions, Table};

/// Where ONNX Runtime's library is.
pub const PLACE: LibraryPlace = LibraryPlace {
    backend: "onnxruntime",
    product: "ONNX Runtime",
    variable: "CONCH_ONNXRUNTIME_LIBRARY",
    settings: &["onnxruntime-library", "library"],
    stem: "libonnxruntime.so",
    package: Some("onnxruntime/capi"),
};

/// Severities of ONNX Runtime's log.
const SEVERITY_INFO: c_int = 1;
const SEVERITY_WARNING: c_int = 2;
const SEVERITY_ERROR: c_int = 3;

/// `OrtDeviceAllocator` and `OrtMemTypeDefault`: memory that ONNX Runtime does not manage.
const DEVICE_ALLOCATOR: c_int = 0;
const MEMORY_TYPE_DEFAULT: c_int = 0;

/// Threads that all sessions of a runtime share, instead of a pool each. 0 lets ONNX Runtime
/// choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalThreads {
    pub intra_op: i32,
    pub inter_op: i32,
}

/// An ONNX Runtime library and its environment. Sessions and values keep it alive. The library
/// itself stays loaded when this is dropped: its threads and thread-locals outlive its environment.
pub struct Runtime {
    pub(super) table: Table,
    pub(super) env: NonNull<OrtEnv>,
    /// ONNX Runtime's own; never freed.
    pub(super) allocator: NonNull<OrtAllocator>,
    pub(super) memory_info: NonNull<OrtMemoryInfo>,
    pub(super) has_global_threads: bool,
    /// Of what sessions and the environment log.
    pub(super) severity: c_int,
    /// Sessions that are made while the environment logs more than that.
    talkative: Mutex<usize>,
    /// Names of the execution providers that this build has.
    providers: Vec<String>,
    version: String,
    path: PathBuf,
}

// SAFETY: environment, default allocator and memory description may be used from any thread at
// once, by the C API's documentation.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

impl fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "ONNX Runtime {} at {}",
            self.version,
            self.path.display()
        )
    }
}

impl Runtime {
    /// Opens the library at `path` and makes an environment that logs into the server's log.
    ///
    /// # Errors
    /// `Unavailable` if the file is no such library or too old; `Internal` for what it reports
    /// itself.
    pub fn open(path: &Path, threads: Option<GlobalThreads>) -> Result<Self, Error> {
        // SAFETY: the operator names this library to be run in the process; its initialisers are
        // ONNX Runtime's.
        let library = unsafe { Library::open_engine(&PLACE, path) }?;
        // SAFETY: this symbol has this type in every release of ONNX Runtime.
        let entry = unsafe { EntryPoint::read(library) }.map_err(|symbol| {
            PLACE.unusable(
                path,
                format_args!("is not ONNX Runtime: it has no '{symbol}'"),
            )
        })?;
        // SAFETY: takes nothing, returns a static struct.
        let base = unsafe { (entry.get_api_base)().as_ref() }
            .ok_or_else(|| PLACE.unusable(path, "returns no API"))?;
        // SAFETY: the version is a static NUL-terminated string.
        let version = unsafe { text_at((base.get_version)()) };
        // SAFETY: returns a static table or null.
        let api = unsafe { (base.get_api)(API_VERSION) };
        if api.is_null() {
            return Err(PLACE.unusable(
                path,
                format_args!("is version {version}, this backend needs 1.{API_VERSION} or later"),
            ));
        }
        // SAFETY: not null, and of the version asked for.
        let table = unsafe { Table::read(api) }.ok_or_else(|| {
            PLACE.unusable(path, format_args!("version {version} lacks functions"))
        })?;

        // ONNX Runtime is talkative below warnings, so its smaller talk is only asked for where
        // the server's log is verbose.
        let severity = match sdk::log::is_enabled(Level::Verbose) {
            true => SEVERITY_INFO,
            false => SEVERITY_WARNING,
        };
        let env = create_env(&table, severity, threads)?;
        let mut allocator = ptr::null_mut();
        let mut memory_info = ptr::null_mut();
        // SAFETY: the results are writable.
        let made = unsafe {
            table
                .check((table.default_allocator)(&raw mut allocator))
                .and_then(|()| {
                    table.check((table.create_cpu_memory_info)(
                        DEVICE_ALLOCATOR,
                        MEMORY_TYPE_DEFAULT,
                        &raw mut memory_info,
                    ))
                })
        };
        let (Ok(()), Some(allocator), Some(memory_info)) = (
            made.clone(),
            NonNull::new(allocator),
            NonNull::new(memory_info),
        ) else {
            // SAFETY: made above and used by nobody.
            unsafe { (table.release_env)(env.as_ptr()) };
            made?;
            return Err(PLACE.unusable(path, "gives no allocator"));
        };
        Ok(Runtime {
            env,
            allocator,
            memory_info,
            has_global_threads: threads.is_some(),
            severity,
            talkative: Mutex::default(),
            providers: providers(&table),
            table,
            version,
            path: path.to_owned(),
        })
    }
}

impl Runtime {
    /// Its minor version: 31 of 1.31.1.
    pub fn minor_version(&self) -> u32 {
        let minor = self.version.split('.').nth(1);
        minor.and_then(|minor| minor.parse().ok()).unwrap_or(0)
    }

    /// Makes something while providers log what they place where, which is information. Sessions
    /// have a severity of their own, so they say no more than ever.
    pub(super) fn while_talkative<T>(&self, make: impl FnOnce() -> T) -> T {
        self.change_talkative(|count| count + 1);
        let made = make();
        self.change_talkative(|count| count - 1);
        made
    }

    fn change_talkative(&self, change: impl FnOnce(usize) -> usize) {
        let mut count = self
            .talkative
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *count = change(*count);
        let severity = match *count {
            0 => self.severity,
            _ => self.severity.min(SEVERITY_INFO),
        };
        let (table, env) = (&self.table, self.env.as_ptr());
        // SAFETY: the environment is live; may be called on any thread.
        if let Err(error) = unsafe { table.check((table.set_env_severity)(env, severity)) } {
            sdk::error!("failed to set what ONNX Runtime logs: {error}");
        }
    }

    /// Whether this build has an execution provider, such as `OpenVINO`.
    pub fn has_provider(&self, name: &str) -> bool {
        let names = self.providers.iter();
        let mut known = names.filter_map(|known| known.strip_suffix("ExecutionProvider"));
        known.any(|known| known == name)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // SAFETY: ours, and everything made from them holds this runtime, so it is gone.
        unsafe {
            (self.table.release_memory_info)(self.memory_info.as_ptr());
            (self.table.release_env)(self.env.as_ptr());
        }
    }
}

/// What a library can run graphs on; nothing where it does not say.
fn providers(table: &Table) -> Vec<String> {
    let mut names = ptr::null_mut();
    let mut count = 0;
    // SAFETY: the results are writable; there are as many NUL-terminated names as said, which are
    // released after they were copied.
    unsafe {
        let told = table.check((table.available_providers)(&raw mut names, &raw mut count));
        if told.is_err() || names.is_null() {
            return Vec::new();
        }
        let known = (0..usize::try_from(count).unwrap_or(0))
            .map(|index| text_at(names.add(index).read()))
            .collect();
        let _ = table.check((table.release_available_providers)(names, count));
        known
    }
}

fn create_env(
    table: &Table,
    severity: c_int,
    threads: Option<GlobalThreads>,
) -> Result<NonNull<OrtEnv>, Error> {
    let mut env = ptr::null_mut();
    match threads {
        // SAFETY: the callback is a static function, the id a static string, the result writable.
        None => unsafe {
            table.check((table.create_env_with_logger)(
                log_line,
                ptr::null_mut(),
                severity,
                c"conch".as_ptr(),
                &raw mut env,
            ))?;
        },
        Some(threads) => {
            let options = ThreadingOptions::new(table, threads)?;
            // SAFETY: as above; the options are copied.
            unsafe {
                table.check((table.create_env_with_logger_and_threads)(
                    log_line,
                    ptr::null_mut(),
                    severity,
                    c"conch".as_ptr(),
                    options.raw,
                    &raw mut env,
                ))?;
            }
        }
    }
    NonNull::new(env).ok_or_else(|| Error::internal("ONNX Runtime gave no environment"))
}

struct ThreadingOptions<'t> {
    table: &'t Table,
    raw: *mut OrtThreadingOptions,
}

impl<'t> ThreadingOptions<'t> {
    fn new(table: &'t Table, threads: GlobalThreads) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable; the wrapper releases it.
        unsafe {
            table.check((table.create_threading_options)(&raw mut raw))?;
            let options = ThreadingOptions { table, raw };
            table.check((table.set_global_intra_op_threads)(raw, threads.intra_op))?;
            table.check((table.set_global_inter_op_threads)(raw, threads.inter_op))?;
            Ok(options)
        }
    }
}

impl Drop for ThreadingOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody.
        unsafe { (self.table.release_threading_options)(self.raw) };
    }
}

/// Passes a line of ONNX Runtime's log on. Called on any of its threads.
unsafe extern "C" fn log_line(
    _parameter: *mut c_void,
    severity: c_int,
    category: *const c_char,
    _id: *const c_char,
    location: *const c_char,
    message: *const c_char,
) {
    let level = match severity {
        ..SEVERITY_WARNING => Level::Verbose,
        SEVERITY_WARNING => Level::Warning,
        SEVERITY_ERROR.. => Level::Error,
    };
    // SAFETY: ONNX Runtime passes NUL-terminated strings that live during the call.
    let text = |pointer| unsafe { text_at(pointer) };
    // A panic must not unwind into C++; a line of log is not worth more than dropping it.
    let _ = std::panic::catch_unwind(|| {
        let message = text(message);
        placement::note(&message);
        sdk::log!(
            level,
            "onnxruntime: {} {}: {message}",
            text(category),
            text(location)
        );
    });
}
