//! The backend, and its models.

use std::path::PathBuf;

use conch_backend_sdk as sdk;
use sdk::engine::complete::autofill;
use sdk::engine::model_file::model_file;
use sdk::engine::validate::validate;
use sdk::engine::{
    self, Engines, InFlightDepth, Session as _, SessionInstance, SessionModel, threads,
};
use sdk::{BackendContext, DeviceStream, Error, InstanceContext, ModelConfig, ModelContext};

use crate::accelerators::{self, Accelerators};
use crate::engine::{Choice, Engine, Session};
use crate::in_flight;
use crate::ort::{GlobalThreads, PLACE, SessionOptions};
use crate::settings;

/// What a build of ONNX Runtime for GPUs has beside its library.
const CUDA_LIBRARY: &str = "libonnxruntime_providers_cuda.so";

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
        match &self.default_choice {
            // As upstream: a model without an instance group goes to the GPUs, if there are any.
            Choice::Library(path) if engine::beside(path, CUDA_LIBRARY).is_some() => Ok(()),
            _ => engine::prefer_cpus(attributes),
        }
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
    /// For instances on GPUs; an error ends only those.
    accelerators: Result<Accelerators, Error>,
    /// Of instances on GPUs, as far as the configuration tells.
    depth: InFlightDepth,
}

impl sdk::Model for Model {
    type Backend = Backend;
    type Instance = SessionInstance<Model>;

    fn initialize(backend: &Backend, context: &mut ModelContext) -> Result<Self, Error> {
        let name = context.name().to_owned();
        let choice = match PLACE.named_by_model(context.config()) {
            Some(setting) => Choice::of_setting(setting),
            None => backend.default_choice.clone(),
        };
        let engine = backend.engine(&choice)?;
        let path = model_file(context, "model.onnx")?;
        let first_gpu = engine::first_gpu(context.config());
        if first_gpu.is_none() {
            for setting in accelerators::gpu_only_settings(context.config()) {
                sdk::warning!("'{setting}' of model '{name}' has no effect on CPU instances");
            }
        }
        let accelerators = accelerators::accelerators(context.config());
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
            let on_cpus = Session::load(&engine, &path, &options, None);
            let session = match (on_cpus, first_gpu) {
                // Some operators are for GPUs alone.
                (Err(_), Some(device)) => {
                    let gpu = accelerators.clone()?.signature_gpu(device);
                    Session::load(&engine, &path, &options, Some(&gpu))?
                }
                (session, _) => session?,
            };
            Ok(session.signature().clone())
        })?;
        let known = accelerators.clone().unwrap_or_default();
        let depth = in_flight::depth(context.config(), &options, &known)?;
        Ok(Model {
            name,
            config: context.config().clone(),
            depth,
            engine,
            path,
            options,
            accelerators,
        })
    }
}

impl SessionModel for Model {
    type Session = Session;

    fn name(&self) -> &str {
        &self.name
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn depth(&self) -> &InFlightDepth {
        &self.depth
    }

    /// Also checks the configuration against it.
    fn load(
        &self,
        context: &InstanceContext,
        stream: Option<&DeviceStream>,
    ) -> Result<Session, Error> {
        let gpu = match stream {
            Some(stream) => Some(self.accelerators.clone()?.gpu(stream, &self.config)?),
            None => None,
        };
        let mut options = self.options.clone();
        let share = threads::share_of_cpus(&self.config, context);
        options
            .intra_op_threads
            .get_or_insert(i32::try_from(share).unwrap_or(i32::MAX));
        let session = Session::load(&self.engine, &self.path, &options, gpu.as_ref());
        let session = session.map_err(|error| match gpu {
            Some(_) => engine::gpu_instance_error(error, &self.name, context),
            None => error,
        })?;
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
