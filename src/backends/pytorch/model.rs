//! The backend, and its models.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use conch_backend_sdk as sdk;
use sdk::engine::model_file::model_file;
use sdk::engine::{
    InFlightDepth, SessionInstance, SessionModel, beside, first_gpu, gpu_instance_error,
    prefer_cpus, threads,
};
use sdk::serde_json::Value;
use sdk::{
    BackendContext, DeviceStream, Error, InstanceContext, Kind, ModelConfig, ModelContext,
    StreamHandle,
};

use crate::compiled::CompiledModel;
use crate::failure::failed_to_load;
use crate::libtorch::{
    CUDA_LIBRARY, MapLocation, ModelContainer, Module, PLACE, Torch,
    check_inputs_of_compiled_models,
};
use crate::session::{Program, Session, takes_on_device};
use crate::settings::{Settings, ineffective_parameters};
use crate::wiring::Wiring;
use crate::{naming, nesting};

/// Backend setting and environment variable that name the shim for TorchScript.
const SHIM_SETTING: &str = "shim";
const SHIM_VARIABLE: &str = "CONCH_PYTORCH_SHIM";

/// A model may hand over a result in main memory that is still on its way there, or wait for its
/// GPU in the middle. Which does is not known before it runs, so whoever knows it says so.
const DEPTH_DEFAULT: usize = 1;

/// What all models of the backend share.
pub struct Backend {
    library: Option<PathBuf>,
    shim: Option<PathBuf>,
    directory: PathBuf,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        check_inputs_of_compiled_models();
        let setting = context.config().setting(SHIM_SETTING).map(PathBuf::from);
        Ok(Backend {
            library: PLACE.for_backend(context),
            shim: setting
                .or_else(|| env::var_os(SHIM_VARIABLE).map(PathBuf::from))
                .filter(|path| !path.as_os_str().is_empty()),
            directory: context.directory().to_owned(),
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()?;
        match &self.library {
            // As upstream: a model without an instance group goes to the GPUs, if there are any.
            Some(library) if beside(library, CUDA_LIBRARY).is_some() => Ok(()),
            _ => prefer_cpus(attributes),
        }
    }
}

/// What a model's file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `model.pt`, TorchScript.
    Script,
    /// `model.pt2`, compiled by AOTInductor.
    Compiled,
}

impl Format {
    /// By platform, as upstream. A server that does not know the platform of compiled models has
    /// none for them; the file's name tells, then.
    fn of(config: &ModelConfig, directory: &Path) -> Self {
        let platform = config.json().get("platform").and_then(Value::as_str);
        match (platform, config.default_model_filename()) {
            (Some("torch_aoti"), _) => Format::Compiled,
            (_, Some(name)) if name.ends_with(".pt2") => Format::Compiled,
            (_, None) if !directory.join("model.pt").exists() => {
                match directory.join("model.pt2").exists() {
                    true => Format::Compiled,
                    false => Format::Script,
                }
            }
            _ => Format::Script,
        }
    }

    fn file_name(self) -> &'static str {
        match self {
            Format::Script => "model.pt",
            Format::Compiled => "model.pt2",
        }
    }
}

/// A loaded model version: where its file is and how it is run.
pub struct Model {
    name: String,
    config: ModelConfig,
    torch: Arc<Torch>,
    path: PathBuf,
    format: Format,
    settings: Settings,
    /// Of instances on GPUs.
    depth: InFlightDepth,
    shared: Mutex<SharedModel>,
}

/// What instances share.
#[derive(Default)]
struct SharedModel {
    /// The module of TorchScript, by its device, where instances share weights.
    modules: Vec<(MapLocation, Arc<Module>)>,
    /// A compiled model, whose library all instances share.
    compiled: Option<Arc<CompiledModel>>,
    /// Its container, where instances share weights.
    container: Option<Arc<ModelContainer>>,
}

impl sdk::Model for Model {
    type Backend = Backend;
    type Instance = SessionInstance<Model>;

    fn initialize(backend: &Backend, context: &mut ModelContext) -> Result<Self, Error> {
        let name = context.name().to_owned();
        refuse_python(&name, context)?;
        let library = PLACE.for_model(context.config(), backend.library.as_deref())?;
        let torch = Torch::open(&library, backend.shim.as_deref(), &backend.directory)?;
        sdk::info!(
            "pytorch backend runs model '{name}' with {}",
            torch.describe()
        );
        let format = Format::of(context.config(), &context.version_directory());
        let path = model_file(context, format.file_name())?;
        let settings = Settings::read(context.config())?;
        let is_compiled = format == Format::Compiled;
        let is_on_gpus = first_gpu(context.config()).is_some();
        for (parameter, why) in ineffective_parameters(context.config(), is_compiled, is_on_gpus) {
            sdk::warning!("parameter '{parameter}' of model '{name}' {why}");
        }
        if format == Format::Script {
            settings.apply_to_process(&torch, &name)?;
        }
        if context.may_complete()? {
            // Torch's models declare neither types nor shapes.
            sdk::warning!(
                "skipping model configuration auto-complete for '{name}': not supported for \
                 pytorch backend"
            );
        }
        let depth = InFlightDepth::of(context.config(), DEPTH_DEFAULT, takes_on_device)?;
        // It gives memory back that kernels may still use.
        let cleans = settings.options.cleans_cache;
        let depth = depth.unless(cleans.then(|| "ENABLE_CACHE_CLEANING is true".to_owned()));
        Ok(Model {
            name,
            config: context.config().clone(),
            depth,
            torch,
            path,
            format,
            settings,
            shared: Mutex::default(),
        })
    }
}

/// Refuses upstream's models in Python, which its core hands to another backend of the same name.
fn refuse_python(name: &str, context: &ModelContext) -> Result<(), Error> {
    let runtime = context.config().json().get("runtime");
    let is_python = runtime.and_then(Value::as_str) == Some("model.py");
    let directory = context.version_directory();
    let has_only_python = directory.join("model.py").exists()
        && context.config().default_model_filename().is_none()
        && !directory.join("model.pt").exists()
        && !directory.join("model.pt2").exists();
    if !is_python && !has_only_python {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "model '{name}' is written in Python (runtime \"model.py\"), which the pytorch backend \
         does not run: give it a TritonPythonModel and backend: \"python\""
    )))
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

    fn load(
        &self,
        context: &InstanceContext,
        stream: Option<&DeviceStream>,
    ) -> Result<Session, Error> {
        let location = match context.kind {
            Kind::Gpu => MapLocation::Gpu(context.device_id),
            // It leaves the device to the model.
            Kind::Model => MapLocation::AsSaved,
            Kind::Cpu | Kind::Auto => MapLocation::Cpu,
        };
        let stream = stream.map(DeviceStream::handle);
        if let Some(stream) = &stream {
            self.prepare_gpu(context, stream)?;
        }
        let share = threads::share_of_cpus(&self.config, context);
        let share = i32::try_from(share).unwrap_or(i32::MAX);
        let threads = self.settings.intra_op_threads.unwrap_or(share);
        self.torch.use_threads(threads);
        let (program, wiring) = match self.format {
            Format::Script => self.load_script(location)?,
            Format::Compiled => self.load_compiled()?,
        };
        let is_batching = self.config.max_batch_size() > 0;
        Ok(Session::new(
            &self.torch,
            program,
            wiring,
            threads,
            is_batching,
            stream,
        ))
    }
}

impl Model {
    /// Opens what torch has for GPUs.
    ///
    /// # Errors
    /// `Unavailable` if it has nothing; `Unsupported` for a compiled model.
    fn prepare_gpu(&self, context: &InstanceContext, stream: &StreamHandle) -> Result<(), Error> {
        let usable = match self.format {
            Format::Script => self.torch.on_stream(stream).map(drop),
            Format::Compiled => Err(Error::unsupported(
                "models compiled by AOTInductor run on CPUs only here; set kind: KIND_CPU in the \
                 model's instance_group",
            )),
        };
        usable.map_err(|error| gpu_instance_error(error, &self.name, context))
    }

    fn load_script(&self, location: MapLocation) -> Result<(Program, Wiring), Error> {
        let options = self.settings.options;
        let load = || {
            nesting::check(&self.path).map_err(|error| failed_to_load(&self.name, error))?;
            Module::load(&self.torch, &self.path, options.inference_mode, location)
                .map(Arc::new)
                .map_err(|error| failed_to_load(&self.name, error))
        };
        let module = if self.settings.share_weights {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            let known = shared.modules.iter().find(|(known, _)| *known == location);
            match known.map(|(_, module)| Arc::clone(module)) {
                Some(module) => {
                    sdk::info!("Reusing TorchScript model for instance '{}'", self.name);
                    module
                }
                None => {
                    let module = load()?;
                    shared.modules.push((location, Arc::clone(&module)));
                    module
                }
            }
        } else {
            load()?
        };
        let arguments = module
            .arguments()
            .map_err(|error| failed_to_load(&self.name, error))?;
        let script = naming::wire(&self.name, &self.config, &arguments)?;
        for warning in &script.warnings {
            sdk::warning!("{warning}");
        }
        let program = Program::Script {
            module,
            options,
            is_dictionary: script.is_dictionary,
        };
        Ok((program, script.wiring))
    }

    fn load_compiled(&self) -> Result<(Program, Wiring), Error> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = match &shared.compiled {
            Some(compiled) => Arc::clone(compiled),
            None => {
                let compiled =
                    CompiledModel::open(&self.torch, &self.name, &self.path, &self.config)?;
                Arc::clone(shared.compiled.insert(Arc::new(compiled)))
            }
        };
        let container = match &shared.container {
            Some(container) => Arc::clone(container),
            None => {
                let count = match self.settings.share_weights {
                    true => usize::try_from(self.config.instance_count()).unwrap_or(1),
                    false => 1,
                };
                let container = ModelContainer::new(&compiled.library, count)
                    .map(Arc::new)
                    .map_err(|error| failed_to_load(&self.name, error))?;
                if self.settings.share_weights {
                    shared.container = Some(Arc::clone(&container));
                }
                container
            }
        };
        Ok((Program::Compiled(container), compiled.wiring.clone()))
    }
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::json;

    use super::*;

    #[test]
    fn knows_what_a_file_holds() {
        let directory = env::temp_dir().join(format!("conch-format-{}", std::process::id()));
        for (files, config, expected) in [
            (&["model.pt"][..], json!({}), Format::Script),
            (&["model.pt2"], json!({"platform": ""}), Format::Compiled),
            (&["model.pt", "model.pt2"], json!({}), Format::Script),
            (
                &["model.pt", "model.pt2"],
                json!({"platform": "torch_aoti"}),
                Format::Compiled,
            ),
            (&[], json!({"platform": "pytorch_libtorch"}), Format::Script),
            (
                &[],
                json!({"default_model_filename": "other.pt2"}),
                Format::Compiled,
            ),
            (
                &["model.pt2"],
                json!({"default_model_filename": "other.pt"}),
                Format::Script,
            ),
        ] {
            std::fs::create_dir_all(&directory).unwrap();
            for file in files {
                std::fs::write(directory.join(file), b"").unwrap();
            }
            let format = Format::of(&ModelConfig::new(config.clone()), &directory);
            assert_eq!(format, expected, "{files:?} {config}");
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
}
