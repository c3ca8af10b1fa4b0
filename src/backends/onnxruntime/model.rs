//! The backend, and its models.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use conch_backend_sdk as sdk;
use sdk::{BackendContext, Batch, Error, InstanceContext, Kind, ModelConfig, ModelContext};

use crate::engine::{Choice, Engine, Session};
use crate::instance::Instance;
use crate::ort::{GlobalThreads, SessionOptions};
use crate::{complete, settings, validate};

/// Environment variable that names the engine's library.
const LIBRARY_VARIABLE: &str = "CONCH_ONNXRUNTIME_LIBRARY";

/// Rows that a model which batches gets if neither its configuration nor the command line says
/// otherwise.
const DEFAULT_MAX_BATCH_SIZE: i64 = 4;

/// What all models of the backend share: the engines, each opened when the first model wants it.
pub struct Backend {
    default_choice: Choice,
    default_max_batch_size: i64,
    threads: Option<GlobalThreads>,
    engines: Mutex<HashMap<Choice, Engine>>,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        let config = context.config();
        let default_choice = config
            .setting(settings::LIBRARY)
            .map(str::to_owned)
            .or_else(|| std::env::var(LIBRARY_VARIABLE).ok())
            .filter(|setting| !setting.is_empty())
            .map_or_else(
                || Choice::find(context.directory()),
                |setting| Choice::parse(&setting),
            );
        let threads = if config.boolean("enable-global-threadpool")?.unwrap_or(false) {
            let count = |name: &str| {
                let count = config.integer(name)?.unwrap_or(0);
                i32::try_from(count).map_err(|_| {
                    Error::invalid(format!("backend setting '{name}' cannot be {count}"))
                })
            };
            Some(GlobalThreads {
                intra_op: count("intra_op_thread_count")?,
                inter_op: count("inter_op_thread_count")?,
            })
        } else {
            None
        };
        Ok(Backend {
            default_choice,
            default_max_batch_size: config
                .integer("default-max-batch-size")?
                .unwrap_or(DEFAULT_MAX_BATCH_SIZE),
            threads,
            engines: Mutex::new(HashMap::new()),
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()?;
        // Only CPUs are driven, so a model without an instance group must not land on a GPU. The
        // count is the server's choice.
        attributes.prefer(sdk::Kind::Cpu, 0, &[])
    }
}

impl Backend {
    /// The engine of a choice, opened at its first use. Models that load meanwhile wait for it.
    fn engine(&self, choice: &Choice) -> Result<Engine, Error> {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        match engines.entry(choice.clone()) {
            Entry::Occupied(entry) => Ok(entry.get().clone()),
            Entry::Vacant(entry) => {
                let engine = Engine::open(choice, self.threads)?;
                sdk::info!("onnxruntime backend runs models with {}", engine.describe());
                Ok(entry.insert(engine).clone())
            }
        }
    }
}

/// A loaded model version: where its file is and how sessions of it are made.
pub struct Model {
    name: String,
    config: ModelConfig,
    engine: Engine,
    path: PathBuf,
    options: SessionOptions,
}

impl sdk::Model for Model {
    type Backend = Backend;
    type Instance = Instance;

    fn initialize(backend: &Backend, context: &mut ModelContext) -> Result<Self, Error> {
        let name = context.name().to_owned();
        let choice = match context.config().parameter(settings::LIBRARY) {
            Some(setting) => Choice::parse(setting),
            None => backend.default_choice.clone(),
        };
        let engine = backend.engine(&choice)?;
        let path = model_path(
            &name,
            &context.version_directory(),
            context.config().default_model_filename(),
        )?;
        for parameter in settings::ineffective_parameters(context.config()) {
            sdk::warning!(
                "parameter '{parameter}' of model '{name}' has no effect on CPU instances"
            );
        }
        for line in settings::configured_lines(context.config()) {
            sdk::verbose!("{line}");
        }
        let options = settings::session_options(&name, context.directory(), context.config())?;
        if context.may_complete()? {
            if complete::is_incomplete(context.config()) {
                // This session only tells the signature: pools of a session belong on the
                // instance's CPUs, which are not known here.
                let signature = Session::load(&engine, &path, &options)?.signature().clone();
                let default = backend.default_max_batch_size;
                let completed = complete::complete(&name, context.config(), &signature, default)?;
                let size = completed.max_batch_size();
                if context.config().max_batch_size() == 0 && size > 0 {
                    sdk::warning!(
                        "autofilled max_batch_size to {size} for model '{name}' since batching is \
                         supported but no max_batch_size is specified in model configuration. Must \
                         specify max_batch_size to utilize autofill with a larger max batch size"
                    );
                }
                context.complete(&completed)?;
            } else {
                sdk::info!(
                    "skipping model configuration auto-complete for '{name}': inputs and outputs \
                     already specified"
                );
            }
        }
        Ok(Model {
            name,
            config: context.config().clone(),
            engine,
            path,
            options,
        })
    }
}

impl Model {
    /// Loads a session and checks the configuration against it.
    ///
    /// # Errors
    /// What the engine says, or what disagrees.
    pub fn load(&self) -> Result<Session, Error> {
        let session = Session::load(&self.engine, &self.path, &self.options)?;
        validate::validate(&self.name, &self.config, session.signature())?;
        Ok(session)
    }
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        if context.kind == Kind::Gpu {
            return Err(Error::unsupported(format!(
                "unable to load model '{}': instance '{}' is of KIND_GPU, and the onnxruntime \
                 backend drives CPUs only; use KIND_CPU",
                model.name, context.name
            )));
        }
        Instance::new(&model.config, model.load()?)
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        self.run(&model.name, batch)
    }
}

/// The model's file: `model.onnx` or the configured name in the version's folder, or `model.onnx`
/// in a folder of that name.
fn model_path(name: &str, directory: &Path, file_name: Option<&str>) -> Result<PathBuf, Error> {
    let mut path = directory.join(file_name.unwrap_or("model.onnx"));
    if path.is_dir() {
        path.push("model.onnx");
    }
    if !path.exists() {
        return Err(Error::unavailable(format!(
            "unable to find '{}' for model instance '{name}'",
            path.display()
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_models_file() {
        let directory = std::env::temp_dir().join(format!("conch-model-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("nested.onnx")).unwrap();
        for file in ["model.onnx", "other.onnx", "nested.onnx/model.onnx"] {
            std::fs::write(directory.join(file), b"").unwrap();
        }
        for (name, expected) in [
            (None, Some("model.onnx")),
            (Some("other.onnx"), Some("other.onnx")),
            (Some("nested.onnx"), Some("nested.onnx/model.onnx")),
            (Some("absent.onnx"), None),
        ] {
            let found = model_path("m", &directory, name).ok();
            assert_eq!(found, expected.map(|name| directory.join(name)), "{name:?}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
