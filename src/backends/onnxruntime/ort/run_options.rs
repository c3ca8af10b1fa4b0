//! Options of a session's runs, among them the one that ends a run.

use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_backend_sdk as sdk;
use sdk::engine::c_string;
use sdk::{Error, Interrupt};

use super::runtime::Runtime;
use super::table::OrtRunOptions;

/// Key of the option that has a run capture or replay the CUDA graph of a number.
const GRAPH: &CStr = c"gpu_graph_id";
/// Of a run that does neither.
const NO_GRAPH: i32 = -1;
/// Key of the option that has a run return without a wait for the devices of its providers.
const WITHOUT_WAIT: &CStr = c"disable_synchronize_execution_providers";

/// Options for one run at a time. Each graph has options of its own, since ONNX Runtime logs a
/// warning whenever an option is set again.
pub(super) struct RunOptions {
    runtime: Arc<Runtime>,
    /// Of the configuration of every run.
    entries: Vec<(CString, CString)>,
    /// Of runs without a graph.
    ordinary: RawRunOptions,
    /// Of runs that are left on their stream.
    without_wait: RawRunOptions,
    /// By the number of the graph. Locked where one is made and where a run is ended, never by a
    /// run.
    of_graphs: Mutex<Vec<(i32, Arc<RawRunOptions>)>>,
    is_interrupted: AtomicBool,
}

impl RunOptions {
    /// `has_graphs`: whether some runs of the session capture or replay a graph.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn new(
        runtime: &Arc<Runtime>,
        entries: &[(CString, CString)],
        has_graphs: bool,
    ) -> Result<Self, Error> {
        let ordinary = RawRunOptions::new(runtime, entries)?;
        if has_graphs {
            ordinary.add(GRAPH, &c_string(&NO_GRAPH.to_string())?)?;
        }
        let without_wait = RawRunOptions::new(runtime, entries)?;
        without_wait.add(WITHOUT_WAIT, c"1")?;
        Ok(RunOptions {
            runtime: Arc::clone(runtime),
            entries: entries.to_vec(),
            ordinary,
            without_wait,
            of_graphs: Mutex::default(),
            is_interrupted: AtomicBool::new(false),
        })
    }

    /// Options of runs without a graph.
    pub(super) fn ordinary(&self) -> &RawRunOptions {
        &self.ordinary
    }

    /// Options of runs that only enqueue, as far as their providers do.
    pub(super) fn without_wait(&self) -> &RawRunOptions {
        &self.without_wait
    }

    /// Options of runs that replay the graph of this number, the first of which captures it.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn of_graph(&self, id: i32) -> Result<Arc<RawRunOptions>, Error> {
        let mut of_graphs = self.of_graphs();
        if let Some((_, options)) = of_graphs.iter().find(|(known, _)| *known == id) {
            return Ok(Arc::clone(options));
        }
        let options = Arc::new(RawRunOptions::new(&self.runtime, &self.entries)?);
        options.add(GRAPH, &c_string(&id.to_string())?)?;
        if self.is_interrupted() {
            options.terminate();
        }
        of_graphs.push((id, Arc::clone(&options)));
        Ok(options)
    }

    /// Whether the run was told to end.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }

    fn of_graphs(&self) -> MutexGuard<'_, Vec<(i32, Arc<RawRunOptions>)>> {
        let of_graphs = self.of_graphs.lock();
        of_graphs.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interrupt for RunOptions {
    fn interrupt(&self) {
        // First: options that are made while this waits for the lock see it.
        self.is_interrupted.store(true, Ordering::Relaxed);
        self.ordinary.terminate();
        self.without_wait.terminate();
        for (_, options) in self.of_graphs().iter() {
            options.terminate();
        }
    }

    fn reset(&self) {
        self.is_interrupted.store(false, Ordering::Relaxed);
        self.ordinary.allow();
        self.without_wait.allow();
        for (_, options) in self.of_graphs().iter() {
            options.allow();
        }
    }
}

/// Options of ONNX Runtime's for runs.
pub(super) struct RawRunOptions {
    runtime: Arc<Runtime>,
    raw: NonNull<OrtRunOptions>,
}

// SAFETY: after they were made only the flag that ends a run changes, which ONNX Runtime has set on
// any thread while a run reads it.
unsafe impl Send for RawRunOptions {}
// SAFETY: as above.
unsafe impl Sync for RawRunOptions {}

impl RawRunOptions {
    fn new(runtime: &Arc<Runtime>, entries: &[(CString, CString)]) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable; the wrapper releases it.
        unsafe { table.check((table.create_run_options)(&raw mut raw))? };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::internal("ONNX Runtime gave no run options"))?;
        let options = RawRunOptions {
            runtime: Arc::clone(runtime),
            raw,
        };
        for (key, value) in entries {
            options.add(key, value)?;
        }
        Ok(options)
    }

    /// Adds an entry, before the first run.
    fn add(&self, key: &CStr, value: &CStr) -> Result<(), Error> {
        let (table, raw) = (&self.runtime.table, self.raw.as_ptr());
        // SAFETY: the options are ours, and no run reads them; both strings are NUL-terminated and
        // copied.
        unsafe { table.check((table.add_run_config)(raw, key.as_ptr(), value.as_ptr())) }
    }

    pub(super) fn as_ptr(&self) -> *const OrtRunOptions {
        self.raw.as_ptr()
    }

    /// Has the run that is going on end, and those that begin.
    fn terminate(&self) {
        let table = &self.runtime.table;
        // SAFETY: live; may be called while a run reads the flag.
        if let Err(error) = unsafe { table.check((table.set_terminate)(self.raw.as_ptr())) } {
            sdk::error!("failed to end a run: {error}");
        }
    }

    /// Has runs go on again.
    fn allow(&self) {
        let table = &self.runtime.table;
        // SAFETY: live, and no run is going on.
        if let Err(error) = unsafe { table.check((table.unset_terminate)(self.raw.as_ptr())) } {
            sdk::error!("failed to allow runs again: {error}");
        }
    }
}

impl Drop for RawRunOptions {
    fn drop(&mut self) {
        // SAFETY: ours, and no run is going on, since the session or its graph holds them.
        unsafe { (self.runtime.table.release_run_options)(self.raw.as_ptr()) };
    }
}
