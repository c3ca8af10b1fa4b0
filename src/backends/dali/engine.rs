//! The opened DALI, of which a process has one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    fn open(path: &Path, plugins: &[PathBuf], is_releasing: bool) -> Result<Self, Error> {
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

/// The engine of all models, opened by the first of them.
#[derive(Default)]
pub struct OpenEngine {
    opened: Mutex<Option<(PathBuf, Arc<Engine>)>>,
}

impl OpenEngine {
    /// The engine whose library is at `path`. Models that load meanwhile wait for it. One that
    /// cannot be opened is tried again for the next model.
    ///
    /// # Errors
    /// As [`Engine::open`]; `Unavailable` if another library is open: the loader takes two versions
    /// of DALI for one, as their parts have the same names.
    pub fn get(
        &self,
        path: &Path,
        plugins: &[PathBuf],
        is_releasing: bool,
    ) -> Result<Arc<Engine>, Error> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        match &*opened {
            Some((open, engine)) if *open == path => Ok(Arc::clone(engine)),
            Some((open, _)) => Err(Error::unavailable(format!(
                "DALI library '{}': a process can have one, and this one has '{}'",
                path.display(),
                open.display()
            ))),
            None => {
                let engine = Arc::new(Engine::open(&path, plugins, is_releasing)?);
                *opened = Some((path, Arc::clone(&engine)));
                Ok(engine)
            }
        }
    }
}
