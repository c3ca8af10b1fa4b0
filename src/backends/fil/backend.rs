//! The backend, and its models.

use std::fs;
use std::path::PathBuf;

use conch_backend_sdk as sdk;
use sdk::engine::{self, threads};
use sdk::{BackendContext, Batch, Error, InstanceContext, MemoryCharge, ModelConfig, ModelContext};

use crate::complete;
use crate::forest::model::Forest;
use crate::formats::Format;
use crate::instance::Instance;
use crate::served::Served;
use crate::settings::{Settings, inert};

/// What all models share.
pub struct Backend {
    default_max_batch_size: i64,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        Ok(Backend {
            default_max_batch_size: engine::default_max_batch_size(context.config())?,
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()?;
        engine::prefer_cpus(attributes)
    }
}

/// A loaded model version.
pub struct Model {
    served: Served,
    config: ModelConfig,
    /// What the forest takes, in the server's memory limit.
    _charge: MemoryCharge,
}

impl sdk::Model for Model {
    type Backend = Backend;
    type Instance = Instance;

    fn initialize(backend: &Backend, context: &mut ModelContext) -> Result<Self, Error> {
        let settings = Settings::new(context.config())?;
        let names = inert(context.config());
        if !names.is_empty() {
            sdk::info!(
                "parameters of model '{}' without effect here: {}",
                context.name(),
                names.join(", ")
            );
        }
        let (path, format) = model_file(context, &settings);
        let forest = read(&path, format, context.name())?;
        if context.may_complete()? {
            let size = backend.default_max_batch_size;
            if let Some(completed) = complete::complete(context.config(), &forest, &settings, size)?
            {
                context.complete(&completed)?;
            }
        }
        let served = Served::new(context.name(), context.config(), &forest, &settings)?;
        let charge = context.memory_charge()?;
        charge.add(served.forest.byte_count() as u64)?;
        Ok(Model {
            served,
            config: context.config().clone(),
            _charge: charge,
        })
    }
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        engine::refuse_gpu("fil", &model.served.name, context)?;
        Ok(Instance::new(model.served.threads_max.unwrap_or_else(
            || threads::share_of_cpus(&model.config, context),
        )))
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        self.run(&model.served, batch)
    }
}

/// The model's file: the configured name in the version's folder, or the format's own, which may
/// also lie in a folder with the configured name.
fn model_file(context: &ModelContext, settings: &Settings) -> (PathBuf, Format) {
    let mut path = context.version_directory();
    if let Some(name) = context.config().default_model_filename() {
        path.push(name);
    }
    let format = settings.format_in(&path);
    if path.is_dir() {
        path.push(format.file_name());
    }
    (path, format)
}

fn read(path: &std::path::Path, format: Format, name: &str) -> Result<Forest, Error> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|error| {
        Error::unavailable(format!(
            "unable to read '{shown}' for model '{name}' (model_type {}): {error}",
            format.name()
        ))
    })?;
    format.read(&bytes).map_err(|what| {
        Error::invalid(format!(
            "unable to load model '{name}' from '{shown}': {what}"
        ))
    })
}
