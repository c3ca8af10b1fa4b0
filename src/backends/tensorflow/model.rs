//! The backend, its models and instances, as the SDK wants them.

use std::path::PathBuf;
use std::sync::Once;

use conch_backend_sdk as sdk;
use sdk::engine::complete::warn_of_batching;
use sdk::engine::model_file::{model_file, model_folder};
use sdk::engine::{self, OnlyEngine, Runner, threads};
use sdk::{BackendContext, Batch, Error, InstanceContext, Kind, ModelConfig, ModelContext};

use crate::complete::complete;
use crate::engine::Engine;
use crate::loaded::{Devices, LoadedModel, Session, Source, init_ops};
use crate::settings::{
    BackendSettings, Format, ModelSettings, has_gpu_accelerators, has_host_policies,
    ineffective_settings,
};
use crate::shared::SharedSessions;
use crate::tf::PLACE;

/// What all models of the backend share.
pub struct Backend {
    settings: BackendSettings,
    library: Option<PathBuf>,
    /// Two versions of TensorFlow in one process take each other's parts.
    engine: OnlyEngine<Engine>,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        for name in ineffective_settings(context.config()) {
            sdk::warning!("backend setting '{name}' has no effect: TensorFlow runs on CPUs");
        }
        Ok(Backend {
            settings: BackendSettings::read(context.config())?,
            library: PLACE.for_backend(context),
            engine: OnlyEngine::new(PLACE),
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()?;
        engine::prefer_cpus(attributes)
    }
}

/// A loaded model version.
pub struct Model {
    config: ModelConfig,
    source: Source,
    sessions: SharedSessions<LoadedModel>,
}

impl sdk::Model for Model {
    type Backend = Backend;
    type Instance = Instance;

    fn initialize(backend: &Backend, context: &mut ModelContext) -> Result<Self, Error> {
        let source = source(backend, context)?;
        if source.format == Format::SavedModel && context.may_complete()? {
            autofill(backend, context, &source)?;
        }
        // Instances on CPUs of their own share TensorFlow's threads too. So those get all CPUs of
        // the process, and are made by this thread, which has them.
        if has_host_policies(context.config()) {
            source.engine.pools(&source.settings)?;
        }
        let sessions = SharedSessions::new(source.settings.session_share_max);
        Ok(Model {
            config: context.config().clone(),
            source,
            sessions,
        })
    }
}

/// Finds library and model and reads the settings.
fn source(backend: &Backend, context: &ModelContext) -> Result<Source, Error> {
    let (name, config) = (context.name(), context.config());
    let format = Format::of(name, config)?;
    let settings = ModelSettings::read(name, context.directory(), config)?;
    if has_gpu_accelerators(config) {
        sdk::warning!(
            "GPU Execution Accelerator will be ignored for model instance on CPU: model '{name}'"
        );
    }
    let path = match format {
        Format::GraphDef => model_file(context, "model.graphdef")?,
        Format::SavedModel => model_folder(context, "model.savedmodel")?,
    };
    let init_ops = match &settings.init_ops_file {
        Some(file) => init_ops(&context.version_directory(), context.directory(), file)?,
        None => Vec::new(),
    };
    let library = PLACE.for_model(config, backend.library.as_deref())?;
    let engine = backend.engine.get(&library, Engine::open)?;
    for library in &settings.op_libraries {
        engine.library.add_operators(library)?;
    }
    Ok(Source {
        engine,
        model_name: name.to_owned(),
        format,
        path,
        settings,
        allows_soft_placement: backend.settings.allows_soft_placement,
        init_ops,
        told: Once::new(),
    })
}

/// Fills in what the configuration leaves out.
fn autofill(backend: &Backend, context: &mut ModelContext, source: &Source) -> Result<(), Error> {
    let name = &source.model_name;
    let tensors = source.saved_tensors(context.config()).map_err(|error| {
        error.context(format_args!(
            "unable to auto-complete model configuration for '{name}', failed to load model"
        ))
    })?;
    let default = backend.settings.default_max_batch_size;
    let completed = complete(name, context.config(), &tensors, default)?;
    warn_of_batching(name, context.config(), &completed);
    context.complete(&completed)
}

/// One executable copy of a model.
pub struct Instance(Runner<Session>);

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        let (config, source) = (&model.config, &model.source);
        engine::refuse_gpu("tensorflow", &source.model_name, context)?;
        let devices = match context.kind {
            Kind::Model => Devices::Any,
            _ => Devices::Cpus,
        };
        let own_threads = threads::share_of_cpus(config, context);
        let load = || source.load(config, devices, own_threads);
        let loaded = model.sessions.take(devices, load)?;
        let session = Session::new(&source.model_name, config, source.format, loaded)?;
        Ok(Instance(Runner::new(config, session)?))
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        self.0.run(&model.source.model_name, batch)
    }
}
