//! Options of a session's runs, among them the one that ends a run.

use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use conch_backend_sdk as sdk;
use sdk::engine::c_string;
use sdk::{Error, Interrupt};

use super::runtime::Runtime;
use super::table::OrtRunOptions;

/// Options for one run at a time.
pub(super) struct RunOptions {
    runtime: Arc<Runtime>,
    raw: NonNull<OrtRunOptions>,
    is_interrupted: AtomicBool,
}

// SAFETY: after they were made only the flag that ends a run changes, which ONNX Runtime has set on
// any thread while a run reads it.
unsafe impl Send for RunOptions {}
// SAFETY: as above.
unsafe impl Sync for RunOptions {}

impl RunOptions {
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn new(
        runtime: &Arc<Runtime>,
        entries: &[(CString, CString)],
    ) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable; the wrapper releases it.
        unsafe { table.check((table.create_run_options)(&raw mut raw))? };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::internal("ONNX Runtime gave no run options"))?;
        let options = RunOptions {
            runtime: Arc::clone(runtime),
            raw,
            is_interrupted: AtomicBool::new(false),
        };
        for (key, value) in entries {
            // SAFETY: the options are ours; both strings are NUL-terminated and copied.
            unsafe {
                table.check((table.add_run_config)(
                    raw.as_ptr(),
                    key.as_ptr(),
                    value.as_ptr(),
                ))?;
            }
        }
        Ok(options)
    }

    pub(super) fn as_ptr(&self) -> *const OrtRunOptions {
        self.raw.as_ptr()
    }

    /// Has the next run replay the graph of this number, or capture it; -1: neither.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn set_graph(&self, id: i32) -> Result<(), Error> {
        let value = c_string(&id.to_string())?;
        let table = &self.runtime.table;
        // SAFETY: the options are ours, and no run reads them; both strings are NUL-terminated and
        // copied.
        unsafe {
            let (raw, key) = (self.raw.as_ptr(), c"gpu_graph_id".as_ptr());
            table.check((table.add_run_config)(raw, key, value.as_ptr()))
        }
    }

    /// Whether the run was told to end.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }
}

impl Interrupt for RunOptions {
    fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::Relaxed);
        let table = &self.runtime.table;
        // SAFETY: live; may be called while a run reads the flag.
        if let Err(error) = unsafe { table.check((table.set_terminate)(self.raw.as_ptr())) } {
            sdk::error!("failed to end a run: {error}");
        }
    }

    fn reset(&self) {
        self.is_interrupted.store(false, Ordering::Relaxed);
        let table = &self.runtime.table;
        // SAFETY: live, and no run is going on.
        if let Err(error) = unsafe { table.check((table.unset_terminate)(self.raw.as_ptr())) } {
            sdk::error!("failed to allow runs again: {error}");
        }
    }
}

impl Drop for RunOptions {
    fn drop(&mut self) {
        // SAFETY: ours, and no run is going on, since the session holds them.
        unsafe { (self.runtime.table.release_run_options)(self.raw.as_ptr()) };
    }
}
