//! The backend, and its models.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use conch_backend_sdk as sdk;
use sdk::engine::Engines;
use sdk::serde_json::Value;
use sdk::{
    BackendContext, DetachedBatch, DeviceAccess, DeviceStream, Error, InstanceContext, ModelConfig,
    ModelContext, StreamHandle,
};

use crate::complete::complete;
use crate::executor::{Executor, Setup};
use crate::facts::Facts;
use crate::graphs::GraphSpecs;
use crate::plan_file::PlanFile;
use crate::settings::{BackendSettings, Settings, ineffective};
use crate::trt::{Engine, Library, Places, Runtime, register_plugins};

/// What all models of the backend share.
pub struct Backend {
    places: Places,
    settings: BackendSettings,
    libraries: Engines<PathBuf, Arc<Library>>,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        let settings = BackendSettings::read(context.config())?;
        for note in &settings.notes {
            sdk::info!("{note}");
        }
        Ok(Backend {
            places: Places::of(context),
            settings,
            libraries: Engines::default(),
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()
    }
}

impl Backend {
    /// The library for a model, opened at its first use, and with it the plug-ins that the
    /// backend's settings name.
    fn library(&self, config: &ModelConfig) -> Result<Arc<Library>, Error> {
        let path = self.places.library(config)?;
        self.libraries.get(&path, |path| {
            let library = Library::open(&self.places, path)?;
            register_plugins(&self.settings.plugins);
            Ok(library)
        })
    }
}

/// A loaded model version: where its plan is and how it is run.
pub struct Model {
    name: String,
    config: ModelConfig,
    settings: Settings,
    graphs: Option<GraphSpecs>,
    library: Arc<Library>,
    file: PlanFile,
    is_version_compatible: bool,
    /// Instances share engines without open dimensions.
    engines: Mutex<HashMap<EnginePlace, Arc<Engine>>>,
}

impl sdk::Model for Model {
    type Backend = Backend;
    type Instance = Instance;

    fn initialize(backend: &Backend, context: &mut ModelContext) -> Result<Self, Error> {
        let name = context.name().to_owned();
        let settings = Settings::read(&name, context.config())?;
        for note in ineffective(context.config()) {
            sdk::warning!("model '{name}': {note}");
        }
        let device = first_gpu(context.config()).ok_or_else(|| Model::needs_gpu(&name))?;
        let library = backend.library(context.config())?;
        sdk::info!(
            "tensorrt backend runs model '{name}' with {}",
            library.describe()
        );
        let file = PlanFile::of(context);
        let is_version_compatible = backend.settings.is_version_compatible;
        if context.may_complete()? {
            let stream = DeviceAccess::default().open(device)?.handle();
            let plan = Plan {
                library: &library,
                file: &file,
                is_version_compatible,
                dla_core: None,
            };
            let facts = plan.facts(&stream, &name)?;
            let (completed, notes) = complete(&name, context.config(), &facts)?;
            for note in notes {
                sdk::warning!("{note}");
            }
            context.complete(&completed)?;
        }
        let config = context.config().clone();
        Ok(Model {
            graphs: GraphSpecs::read(&config)?,
            name,
            config,
            settings,
            library,
            file,
            is_version_compatible,
            engines: Mutex::default(),
        })
    }
}

impl Model {
    /// That a model has no GPU, in upstream's words.
    fn needs_gpu(model_name: &str) -> Error {
        Error::invalid(format!(
            "unable to load model '{model_name}', TensorRT backend supports only GPU device"
        ))
    }

    /// The engine of an instance, on the device of `stream`, which is current.
    ///
    /// # Errors
    /// `Unavailable` if there is no plan; what TensorRT says of it.
    fn engine(
        &self,
        context: &InstanceContext,
        stream: &StreamHandle,
    ) -> Result<Arc<Engine>, Error> {
        let dla_core = dla_core(context)?;
        // Reading one is not for several threads at once, says upstream's backend.
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (context.device_id, dla_core);
        if let Some(engine) = engines.get(&key) {
            return Ok(Arc::clone(engine));
        }
        let plan = Plan {
            library: &self.library,
            file: &self.file,
            is_version_compatible: self.is_version_compatible,
            dla_core,
        };
        let engine = Arc::new(plan.engine(stream, &context.name)?);
        let tensors = &engine.facts().tensors;
        if tensors.iter().all(|tensor| !tensor.dims.contains(&-1)) {
            engines.insert(key, Arc::clone(&engine));
        }
        Ok(engine)
    }
}

/// One executable copy of a model.
pub struct Instance(Executor);

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        let stream = DeviceStream::open(context, model.settings.priority)?
            .ok_or_else(|| Model::needs_gpu(&model.name))?;
        let compute = stream.handle();
        let current = compute.current()?;
        let engine = model.engine(context, &compute)?;
        drop(current);
        let setup = Setup {
            model_name: &model.name,
            config: &model.config,
            settings: &model.settings,
            graphs: model.graphs.as_ref(),
            engine,
            stream,
            name: &context.name,
            profile_names: &context.profiles,
        };
        Executor::new(&setup).map(Instance)
    }
}

impl sdk::StreamInstance for Instance {
    fn depth_max(&self) -> usize {
        self.0.depth_max()
    }

    fn enqueue(&mut self, _model: &Model, batch: DetachedBatch) {
        self.0.enqueue(batch);
    }

    fn poll(&mut self, _model: &Model) -> usize {
        self.0.poll()
    }
}

/// A GPU, and a core of the deep-learning accelerator beside it.
type EnginePlace = (i32, Option<i64>);

/// A plan, and how it is read.
struct Plan<'p> {
    library: &'p Arc<Library>,
    file: &'p PlanFile,
    is_version_compatible: bool,
    dla_core: Option<i64>,
}

impl Plan<'_> {
    /// Reads it on the device of a stream, which is current.
    fn engine(&self, stream: &StreamHandle, instance: &str) -> Result<Engine, Error> {
        // TensorRT reads one plan at a time in a process, as in upstream's backend.
        static READING: Mutex<()> = Mutex::new(());
        let plan = self.file.read(&stream.compute_capability(), instance)?;
        let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut runtime = Runtime::new(self.library)?;
        if self.is_version_compatible && !runtime.allow_host_code() {
            sdk::warning!(
                "'version-compatible' has no effect: {} cannot",
                self.library.describe()
            );
        }
        if let Some(core) = self.dla_core {
            runtime.use_dla_core(core)?;
        }
        Engine::read(runtime, &plan)
    }

    /// What a plan says of itself, to complete a configuration.
    fn facts(&self, stream: &StreamHandle, model_name: &str) -> Result<Facts, Error> {
        let _current = stream.current()?;
        let engine = self.engine(stream, model_name).map_err(|error| {
            let path = self.file.path(&stream.compute_capability());
            Error::new(
                error.code(),
                format!(
                    "unable to load plan file to auto complete config: {}: {}",
                    path.display(),
                    error.message()
                ),
            )
        })?;
        Ok(engine.facts().clone())
    }
}

/// The GPU of the first instance group, if that is of GPUs: the server has resolved kinds and
/// devices by now.
fn first_gpu(config: &ModelConfig) -> Option<i32> {
    let groups = config.json().get("instance_group")?.as_array()?;
    let group = groups.first()?;
    if group.get("kind")?.as_str()? != "KIND_GPU" {
        return None;
    }
    let gpus = group.get("gpus").and_then(Value::as_array);
    let first = gpus.and_then(|gpus| gpus.first()).and_then(Value::as_i64);
    i32::try_from(first.unwrap_or(0)).ok()
}

/// The core of the deep-learning accelerator that an instance names.
fn dla_core(context: &InstanceContext) -> Result<Option<i64>, Error> {
    let mut core = None;
    for (kind, id) in &context.secondary_devices {
        match kind.as_str() {
            "KIND_NVDLA" => core = Some(*id),
            other => {
                return Err(Error::invalid(format!(
                    "unknown secondary device kind '{other}' of instance {}",
                    context.name
                )));
            }
        }
    }
    Ok(core)
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::json;

    use super::*;

    #[test]
    fn the_gpu_that_completes_a_configuration() {
        for (config, expected) in [
            (json!({}), None),
            (json!({"instance_group": [{"kind": "KIND_CPU"}]}), None),
            (
                json!({"instance_group": [{"kind": "KIND_GPU", "gpus": [2, 0]}]}),
                Some(2),
            ),
            (
                json!({"instance_group": [{"kind": "KIND_CPU"}, {"kind": "KIND_GPU"}]}),
                None,
            ),
        ] {
            assert_eq!(first_gpu(&ModelConfig::new(config)), expected);
        }
    }
}
