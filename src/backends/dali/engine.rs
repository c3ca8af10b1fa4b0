//! The opened DALI, of which a process has one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use conch_backend_sdk as sdk;
use sdk::Error;

use crate::capi::{Device, Options, Pipeline, Runtime};
use crate::pipeline_file::PipelineFile;

/// An opened DALI, and how many models use it.
pub struct Engine {
    pub runtime: Arc<Runtime>,
    model_count: AtomicUsize,
    is_releasing: bool,
}

impl Engine {
    /// Opens the library at `path`. With `is_releasing` it gives memory back to the system when the
    /// last model has left.
    ///
    /// # Errors
    /// As [`Runtime::open`]. A plug-in that cannot be loaded is told in the log only: models that
    /// do not need it are served without it, as by upstream's.
    pub fn open(path: &Path, plugins: &[PathBuf], is_releasing: bool) -> Result<Self, Error> {
        let runtime = Runtime::open(path)?;
        for plugin in plugins {
            if let Err(error) = runtime.load_plugin(plugin) {
                sdk::error!("{error}");
            }
        }
        sdk::info!("dali backend runs pipelines with {runtime:?}");
        Ok(Engine {
            runtime: Arc::new(runtime),
            model_count: AtomicUsize::new(0),
            is_releasing,
        })
    }

    /// # Errors
    /// What DALI says of the pipeline.
    pub fn build(&self, file: &PipelineFile, options: &Options) -> Result<Pipeline, Error> {
        match options.device {
            Device::Cpu => Pipeline::build(&self.runtime, &file.bytes_for_cpu(), options),
            Device::Gpu(_) => Pipeline::build(&self.runtime, file.bytes(), options),
        }
    }

    /// A model begins to use the engine, until it calls [`Self::leave`].
    pub fn enter(&self) {
        self.model_count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn leave(&self) {
        let is_last = self.model_count.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && self.is_releasing {
            self.runtime.release_unused_memory();
        }
    }
}
