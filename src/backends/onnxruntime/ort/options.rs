//! Options of sessions.

use std::ffi::{CString, c_int};
use std::path::PathBuf;
use std::ptr;

use conch_backend_sdk::Error;
use conch_backend_sdk::engine::c_path;

use super::providers::{self, Entries, EntryArrays, Gpu};
use super::runtime::Runtime;
use super::table::OrtSessionOptions;

/// How far ONNX Runtime may rewrite a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphOptimization {
    None,
    Basic,
    Extended,
    All,
}

impl GraphOptimization {
    fn to_raw(self) -> c_int {
        match self {
            GraphOptimization::None => 0,
            GraphOptimization::Basic => 1,
            GraphOptimization::Extended => 2,
            GraphOptimization::All => 99,
        }
    }
}

/// How a session is made and run. Counts of 0 let ONNX Runtime choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    pub log_id: CString,
    pub optimization: GraphOptimization,
    pub is_parallel: bool,
    /// Of the session's own pool; none: one, which is enough to look at a model.
    pub intra_op_threads: Option<i32>,
    pub inter_op_threads: i32,
    pub has_memory_arena: Option<bool>,
    pub has_memory_pattern: Option<bool>,
    /// Entries of the session's configuration, such as `session.intra_op.allow_spinning`.
    pub session_entries: Entries,
    /// Entries of each run's configuration, such as `memory.enable_memory_arena_shrinkage`.
    pub run_entries: Entries,
    pub custom_op_libraries: Vec<PathBuf>,
    /// Tried in this order before the CPU's own, and after those of a GPU.
    pub providers: Vec<Provider>,
    /// Where profiles are written: ONNX Runtime adds the time and `.json`.
    pub profile_prefix: Option<CString>,
}

/// An execution provider, which takes over what it can of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// As [`Runtime::has_provider`] and ONNX Runtime know it: `OpenVINO`.
    pub name: CString,
    pub entries: Entries,
}

pub(super) struct RawOptions<'r> {
    runtime: &'r Runtime,
    pub(super) raw: *mut OrtSessionOptions,
}

impl<'r> RawOptions<'r> {
    pub(super) fn new(
        runtime: &'r Runtime,
        options: &SessionOptions,
        gpu: Option<&Gpu>,
    ) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable; the wrapper releases it.
        unsafe { table.check((table.create_session_options)(&raw mut raw))? };
        let wrapper = RawOptions { runtime, raw };
        // SAFETY: the options are live; strings are NUL-terminated and copied.
        unsafe {
            table.check((table.set_session_log_id)(raw, options.log_id.as_ptr()))?;
            table.check((table.set_session_severity)(raw, runtime.severity))?;
            table.check((table.set_graph_optimization)(
                raw,
                options.optimization.to_raw(),
            ))?;
            table.check((table.set_execution_mode)(
                raw,
                c_int::from(options.is_parallel),
            ))?;
            if runtime.has_global_threads {
                table.check((table.disable_per_session_threads)(raw))?;
            } else {
                let count = options.intra_op_threads.unwrap_or(1);
                table.check((table.set_intra_op_threads)(raw, count))?;
                table.check((table.set_inter_op_threads)(raw, options.inter_op_threads))?;
            }
            match options.has_memory_arena {
                Some(true) => table.check((table.enable_cpu_mem_arena)(raw))?,
                Some(false) => table.check((table.disable_cpu_mem_arena)(raw))?,
                None => {}
            }
            match options.has_memory_pattern {
                Some(true) => table.check((table.enable_mem_pattern)(raw))?,
                Some(false) => table.check((table.disable_mem_pattern)(raw))?,
                None => {}
            }
            for (key, value) in &options.session_entries {
                table.check((table.add_session_config)(
                    raw,
                    key.as_ptr(),
                    value.as_ptr(),
                ))?;
            }
            for library in &options.custom_op_libraries {
                table.check((table.register_custom_ops)(raw, c_path(library)?.as_ptr()))?;
            }
            if let Some(prefix) = &options.profile_prefix {
                table.check((table.enable_profiling)(raw, prefix.as_ptr()))?;
            }
        }
        if let Some(gpu) = gpu {
            // SAFETY: the options are live.
            unsafe { providers::append(runtime, gpu, raw, &options.log_id)? };
        }
        for provider in &options.providers {
            wrapper.append_provider(provider)?;
        }
        Ok(wrapper)
    }

    fn append_provider(&self, provider: &Provider) -> Result<(), Error> {
        let table = &self.runtime.table;
        let arrays = EntryArrays::of(&provider.entries);
        // SAFETY: the options are live; strings are NUL-terminated and copied, the arrays have the
        // length given.
        unsafe {
            table.check((table.append_provider)(
                self.raw,
                provider.name.as_ptr(),
                arrays.keys.as_ptr(),
                arrays.values.as_ptr(),
                provider.entries.len(),
            ))
        }
    }
}

impl Drop for RawOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; a session made from them has copied them.
        unsafe { (self.runtime.table.release_session_options)(self.raw) };
    }
}
