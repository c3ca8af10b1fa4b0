//! The backend, and its models.

use std::fs;
use std::path::PathBuf;

use conch_backend_sdk as sdk;
use sdk::{BackendContext, Error, MemoryCharge, ModelConfig, ModelContext};

use crate::complete;
use crate::forest::model::Forest;
use crate::forest::{Compiled, Shap};
use crate::formats::Format;
use crate::instance::Instance;
use crate::settings::{Settings, inert};
use crate::signature::{
    Answer, OUTPUT, Output, SHAP_OUTPUT, check_input, configured_width, output,
};

/// Rows that a model gets if neither its configuration nor the command line says otherwise.
const DEFAULT_MAX_BATCH_SIZE: i64 = 4;

/// What all models share.
pub struct Backend {
    default_max_batch_size: i64,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        let size = context.config().integer("default-max-batch-size")?;
        Ok(Backend {
            default_max_batch_size: size.unwrap_or(DEFAULT_MAX_BATCH_SIZE),
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()?;
        // Without an instance group, or with KIND_AUTO, a model must not land on a GPU.
        attributes.prefer(sdk::Kind::Cpu, 0, &[])
    }
}

/// A loaded model version, which its instances share.
pub struct Model {
    pub name: String,
    pub forest: Compiled,
    pub answer: Answer,
    pub output: Output,
    pub shap: Option<(Shap, Output)>,
    /// Threads for a batch of one instance; none: its share of the CPUs.
    pub threads_max: Option<usize>,
    pub instance_count: usize,
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
        let charge = context.memory_charge()?;
        Model::new(context.name(), context.config(), &forest, &settings, charge)
    }
}

impl Model {
    fn new(
        name: &str,
        config: &ModelConfig,
        forest: &Forest,
        settings: &Settings,
        charge: MemoryCharge,
    ) -> Result<Model, Error> {
        check_input(name, config, forest.feature_count)?;
        let answer = Answer::new(forest, settings, configured_width(config, OUTPUT)?);
        let width = answer.width(forest.class_count);
        let refused =
            |what: String| Error::invalid(format!("unable to load model '{name}': {what}"));
        let wants_shap = config
            .outputs()?
            .iter()
            .any(|output| output.name() == SHAP_OUTPUT);
        let shap = if wants_shap {
            let shap = Shap::new(forest).map_err(refused)?;
            let output = output(name, config, SHAP_OUTPUT, shap.width())?;
            Some((shap, output))
        } else {
            None
        };
        let compiled = Compiled::new(forest).map_err(refused)?;
        charge.add(compiled.byte_count() as u64)?;
        sdk::verbose!(
            "model '{name}' has {} trees with {} nodes in {} bytes",
            compiled.tree_count(),
            compiled.node_count(),
            compiled.byte_count()
        );
        Ok(Model {
            name: name.to_owned(),
            forest: compiled,
            answer,
            output: output(name, config, OUTPUT, width)?,
            shap,
            threads_max: settings.threads_max,
            instance_count: usize::try_from(config.instance_count()).unwrap_or(1).max(1),
            _charge: charge,
        })
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
