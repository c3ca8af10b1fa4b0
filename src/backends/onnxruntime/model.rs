//! The backend, and its models.

use std::path::PathBuf;

use conch_backend_sdk as sdk;
use sdk::engine::complete::autofill;
use sdk::engine::model_file::model_file;
use sdk::engine::validate::validate;
use sdk::engine::{self, Engines, Runner, Session as _, threads};
use sdk::{BackendContext, Batch, Error, InstanceContext, ModelConfig, ModelContext};

use crate::engine::{Choice, Engine, Session};
use crate::ort::{GlobalThreads, PLACE, SessionOptions};
use crate::settings;

/// What all models of the backend share: the engines, each opened when the first model wants it.
pub struct Backend {
    default_choice: Choice,
    default_max_batch_size: i64,
    threads: Option<GlobalThreads>,
    engines: Engines<Choice, Engine>,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        let config = context.config();
        let default_choice = PLACE
            .for_backend(context)
            .map_or(Choice::Embedded, Choice::of_setting);
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
            default_max_batch_size: engine::default_max_batch_size(config)?,
            threads,
            engines: Engines::default(),
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()?;
        engine::prefer_cpus(attributes)
    }
}

impl Backend {
    /// The engine of a choice, opened at its first use. Models that load meanwhile wait for it.
    fn engine(&self, choice: &Choice) -> Result<Engine, Error> {
        self.engines.get(choice, |choice| {
            let engine = Engine::open(choice, self.threads)?;
            sdk::info!("onnxruntime backend runs models with {}", engine.describe());
            Ok(engine)
        })
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
        let choice = match PLACE.named_by_model(context.config()) {
            Some(setting) => Choice::of_setting(setting),
            None => backend.default_choice.clone(),
        };
        let engine = backend.engine(&choice)?;
        let path = model_file(context, "model.onnx")?;
        for setting in settings::ineffective_settings(context.config()) {
            sdk::warning!("'{setting}' of model '{name}' has no effect on CPU instances");
        }
        for line in settings::configured_lines(context.config()) {
            sdk::verbose!("{line}");
        }
        let options = settings::session_options(&name, context.directory(), context.config())?;
        // This session only tells the signature: pools of a session belong on the instance's CPUs,
        // which are not known here.
        autofill(context, backend.default_max_batch_size, || {
            let options = SessionOptions {
                profile_prefix: None,
                ..options.clone()
            };
            Ok(Session::load(&engine, &path, &options)?.signature().clone())
        })?;
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
    /// Loads the session of an instance, on its thread, and checks the configuration against it.
    ///
    /// # Errors
    /// What the engine says, or what disagrees.
    fn load(&self, context: &InstanceContext) -> Result<Session, Error> {
        let mut options = self.options.clone();
        let share = threads::share_of_cpus(&self.config, context);
        options
            .intra_op_threads
            .get_or_insert(i32::try_from(share).unwrap_or(i32::MAX));
        let session = Session::load(&self.engine, &self.path, &options)?;
        if !options.providers.is_empty() {
            sdk::verbose!(
                "OpenVINO Execution Accelerator is set for '{}' on CPU",
                self.name
            );
        }
        validate(&self.name, &self.config, session.signature())?;
        Ok(session)
    }
}

/// One executable copy of a model.
pub struct Instance(Runner<Session>);

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        engine::refuse_gpu("onnxruntime", &model.name, context)?;
        Runner::new(&model.config, model.load(context)?).map(Instance)
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        self.0.run(&model.name, batch)
    }
}
