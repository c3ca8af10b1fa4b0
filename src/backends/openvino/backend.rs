//! The backend, and its models and instances.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::complete::autofill;
use sdk::engine::model_file::model_folder;
use sdk::engine::validate::validate;
use sdk::engine::{self, Engines, Runner, Session as _, Signature, threads};
use sdk::{
    BackendContext, Batch, DetachedBatch, Error, InstanceContext, ModelConfig, ModelContext,
};

use crate::batching::{self, Batching, ConfiguredModel};
use crate::layout;
use crate::ov::{Core, PLACE, Runtime};
use crate::session::Session;
use crate::settings::Settings;
use crate::shared_models::SharedModels;
use crate::variables_index;
use crate::workers::Workers;

/// What a model's file or folder is called where the configuration does not say: the first of these
/// that is there. Triton's backend looks for the first alone.
const FILE_NAMES: [&str; 5] = [
    "model.xml",
    "model.onnx",
    "model.saved_model",
    "model.tflite",
    "model.pdmodel",
];

/// What all models of the backend share: the libraries, each opened when the first model wants it.
pub struct Backend {
    library: Option<PathBuf>,
    default_max_batch_size: i64,
    runtimes: Engines<PathBuf, Arc<Runtime>>,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        Ok(Backend {
            library: PLACE.for_backend(context),
            default_max_batch_size: engine::default_max_batch_size(context.config())?,
            runtimes: Engines::default(),
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()?;
        engine::prefer_cpus(attributes)
    }
}

/// A loaded model version.
pub struct Model {
    name: String,
    config: ModelConfig,
    settings: Settings,
    runtime: Arc<Runtime>,
    path: PathBuf,
    shared_models: SharedModels,
}

impl sdk::Model for Model {
    type Backend = Backend;
    type Instance = Instance;

    fn initialize(backend: &Backend, context: &mut ModelContext) -> Result<Self, Error> {
        let settings = Settings::new(context.config())?;
        let library = PLACE.for_model(context.config(), backend.library.as_deref())?;
        let runtime = backend.runtimes.get(&library, |library| {
            let runtime = Arc::new(Runtime::open(library)?);
            sdk::info!("the openvino backend runs models with {runtime:?}");
            Ok(runtime)
        })?;
        let path = model_path(context)?;
        variables_index::check(&path)?;
        let (size, signature) = completion(backend, context.config(), &path);
        autofill(context, size, || signature(&runtime, &settings))?;
        Ok(Model {
            name: context.name().to_owned(),
            config: context.config().clone(),
            settings,
            runtime,
            path,
            shared_models: SharedModels::default(),
        })
    }
}

impl Model {
    /// What an instance runs its batches with, made on its thread, with the configuration checked
    /// against the model: as many as it may run at a time.
    fn runners(&self, context: &InstanceContext) -> Result<Vec<Runner<Session>>, Error> {
        let share = threads::share_of_cpus(&self.config, context);
        let sessions = self
            .shared_models
            .sessions(&self.name, &self.settings, share, || self.prepare())?;
        // One batch of a sequence must be finished before the next begins.
        let is_sequential = self.config.json().get("sequence_batching").is_some();
        let count = if is_sequential { 1 } else { sessions.len() };
        let runner = |session: Session| {
            validate(&self.name, &self.config, session.signature())?;
            Runner::new(&self.config, session)
        };
        sessions.into_iter().take(count).map(runner).collect()
    }

    fn prepare(&self) -> Result<(Core, ConfiguredModel), Error> {
        let core = new_core(&self.runtime, &self.settings)?;
        let read = |core: &Core| core.read_model(&self.path);
        let configured = batching::prepare(&self.name, &self.config, &self.settings, &core, read)?;
        Ok((core, configured))
    }
}

/// One executable copy of a model.
pub enum Instance {
    /// One run at a time, on the instance's own thread.
    Single(Box<Runner<Session>>),
    Several(Workers<DetachedBatch>),
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        engine::refuse_gpu("openvino", &model.name, context)?;
        let mut runners = model.runners(context)?;
        match (runners.pop(), runners.is_empty()) {
            (Some(runner), true) => Ok(Instance::Single(Box::new(runner))),
            (runner, _) => {
                runners.extend(runner);
                sdk::info!(
                    "instance '{}' has up to {} runs at a time",
                    context.name,
                    runners.len()
                );
                let execute = |mut runner: Runner<Session>| {
                    let name = model.name.clone();
                    move |batch: DetachedBatch| batch.finish(|batch| runner.run(&name, batch))
                };
                let executes = runners.into_iter().map(execute).collect();
                Workers::new(&model.name, executes).map(Instance::Several)
            }
        }
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        match self {
            Instance::Single(runner) => runner.run(&model.name, batch),
            // Batches come to `submit`, which does not call this for several.
            Instance::Several(_) => Err(Error::internal("a batch that is not detached")),
        }
    }
}

impl sdk::DetachingInstance for Instance {
    fn submit(&mut self, model: &Model, batch: DetachedBatch) {
        match self {
            Instance::Single(_) => {
                batch.finish(|batch| sdk::Instance::execute(self, model, batch));
            }
            Instance::Several(workers) => workers.submit(batch),
        }
    }
}

fn new_core(runtime: &Arc<Runtime>, settings: &Settings) -> Result<Core, Error> {
    let core = Core::new(runtime)?;
    if let Some(extension) = &settings.extension {
        core.add_extension(extension)?;
        sdk::info!("CPU extensions is loaded {extension}");
    }
    Ok(core)
}

/// The model's file or folder. The name that servers fill in where the configuration has none
/// stands for all that there are.
fn model_path(context: &ModelContext) -> Result<PathBuf, Error> {
    let configured = context.config().default_model_filename();
    if configured.is_none_or(|name| name == FILE_NAMES[0]) {
        let mut paths = FILE_NAMES
            .map(|name| context.version_directory().join(name))
            .into_iter();
        if let Some(path) = paths.find(|path| path.exists()) {
            return Ok(path);
        }
    }
    model_folder(context, FILE_NAMES[0])
}

/// How a configuration is completed: with which batch size, and from which signature.
///
/// As for Triton's backend the layouts in the file say whether a model batches, which only
/// OpenVINO's own format has. Where the configuration says so itself, it is believed.
fn completion<'p>(
    backend: &Backend,
    config: &ModelConfig,
    path: &'p Path,
) -> (
    i64,
    impl FnOnce(&Arc<Runtime>, &Settings) -> Result<Signature, Error> + use<'p>,
) {
    let is_own_format = path.extension().is_some_and(|extension| extension == "xml");
    let batches = config.max_batch_size() > 0
        || is_own_format && std::fs::read_to_string(path).is_ok_and(|xml| layout::has_batch(&xml));
    let size = match batches {
        true => backend.default_max_batch_size.max(1),
        false => 0,
    };
    let signature = move |runtime: &Arc<Runtime>, settings: &Settings| {
        let model = new_core(runtime, settings)?.read_model(path)?;
        let mut signature = batching::signature(&model, Batching::None)?;
        if batches {
            let infos = signature.inputs.iter_mut().chain(&mut signature.outputs);
            for first in infos.filter_map(|info| info.dims.first_mut()) {
                *first = -1;
            }
        }
        Ok(signature)
    };
    (size, signature)
}
