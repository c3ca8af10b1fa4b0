//! The Python backend: serves models whose `model.py` has a class `TritonPythonModel`, and is the
//! runtime of backends that are a `model.py` themselves.
//!
//! Each instance has a process of its own, the stub, which an interpreter of the user's choice runs
//! (`runtime/`). Requests and responses pass through shared memory without a name
//! (`conch-python-ipc`). See README.md for how the parts work together.

mod call_text;
mod calls;
mod child_request;
mod children;
mod control;
mod decode;
mod device_buffers;
mod device_inputs;
mod devices;
mod encode;
mod environment;
mod execution;
#[cfg(test)]
mod fuzz;
mod host;
mod in_flight;
mod launch;
mod log_pipe;
mod metrics;
mod process;
mod readiness;
mod settings;
mod shared_tensor;
mod supervisor;
mod unpacked;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::{Batch, Error, InstanceContext, ModelConfig, ModelContext, Progress};
use serde_json::json;

use crate::calls::Calls;
use crate::decode::CommandReply;
use crate::environment::Environments;
use crate::execution::{Execution, OpenExecution};
use crate::host::{
    CommandFailure, InstanceThread, KILL_LIMIT, ModelStubs, StubHost, command_while_serving,
};
use crate::launch::{Installation, Launch};
use crate::process::{ModelMemory, NoReply};
use crate::settings::{ModelSettings, Settings};
use crate::supervisor::Supervisor;

sdk::export_backend!(Python, open, ready);

/// Shared by all models.
pub struct Python {
    settings: Settings,
    installation: Installation,
    environments: Environments,
    supervisor: Arc<Supervisor>,
    /// The folder of a backend that is a `model.py`, whose runtime this is.
    runtime_directory: Option<PathBuf>,
}

impl sdk::Backend for Python {
    type Model = Model;

    fn initialize(context: &sdk::BackendContext) -> Result<Self, Error> {
        for name in settings::inert(context.config()) {
            sdk::warning!(
                "backend setting '{name}' has no effect: shared memory has no name, and calls take \
                 up no threads"
            );
        }
        let own = sdk::library_directory().unwrap_or_else(|| context.directory().to_owned());
        let is_other = context.directory() != own || context.name() != "python";
        let runtime_directory = is_other && context.directory().join("model.py").exists();
        Ok(Python {
            settings: Settings::read(context.config())?,
            installation: Installation::find(&own)?,
            environments: Environments::new(),
            supervisor: Arc::new(Supervisor::start()?),
            runtime_directory: runtime_directory.then(|| context.directory().to_owned()),
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        // Each start takes as long as its imports.
        attributes.allow_parallel_instances()
    }
}

/// One version of a model.
pub struct Model {
    stubs: Arc<ModelStubs>,
    config: String,
    version: u64,
    directory: PathBuf,
    /// Whether `FORCE_CPU_ONLY_INPUT_TENSORS` is "no".
    has_device_inputs: bool,
    hosts: Mutex<Vec<Weak<StubHost>>>,
}

impl sdk::Model for Model {
    type Backend = Python;
    type Instance = Instance;

    fn initialize(backend: &Python, context: &mut ModelContext) -> Result<Self, Error> {
        let model_settings = ModelSettings::read(context.config())?;
        let interpreter = backend.environments.interpreter(
            &backend.settings,
            &model_settings,
            context.directory(),
        )?;
        let file = context.config().default_model_filename();
        let model_path = context.version_directory().join(file.unwrap_or("model.py"));
        let mut launch = Launch {
            installation: backend.installation.clone(),
            interpreter,
            segment_bytes: backend.settings.segment_bytes,
            memory: Arc::new(ModelMemory(context.memory_charge()?)),
            model_name: context.name().to_owned(),
            model_path,
            runtime_directory: backend.runtime_directory.clone(),
            is_decoupled: context.config().is_decoupled(),
        };
        let server = context.server();
        if context.may_complete()? {
            complete(backend, &launch, &server, context)?;
            launch.is_decoupled = context.config().is_decoupled();
        }
        Ok(Model {
            stubs: Arc::new(ModelStubs {
                supervisor: Arc::clone(&backend.supervisor),
                launch,
                settings: backend.settings.clone(),
                server,
            }),
            config: context.config().json().to_string(),
            version: context.version(),
            directory: context.directory().to_owned(),
            has_device_inputs: model_settings.has_device_inputs,
            hosts: Mutex::default(),
        })
    }
}

/// Has the model fill in what its configuration leaves out, in a process of its own.
fn complete(
    backend: &Python,
    launch: &Launch,
    server: &sdk::Server,
    context: &mut ModelContext,
) -> Result<(), Error> {
    let devices = sdk::DeviceAccess::default();
    let process = launch.start(&backend.supervisor, &launch.model_name, devices)?;
    let command = json!({ "k": "complete", "config": context.config().json().to_string() });
    let calls = Calls::without_requests(server);
    let limit = backend.settings.start_timeout;
    let reply = command_while_serving(&process, &calls, &command.to_string(), limit, || false);
    process.kill();
    process.wait_for_end(KILL_LIMIT);
    calls.close();
    let config = match reply {
        Ok(CommandReply { config, .. }) => config,
        Err(CommandFailure::Refused(error)) => return Err(error),
        Err(CommandFailure::NoReply(failure)) => {
            let what = match failure {
                NoReply::TimedOut => "it took too long (initialize-timeout-seconds)".to_owned(),
                NoReply::Malformed => "malformed reply".to_owned(),
                NoReply::Ended | NoReply::NotTaken => {
                    format!("the process {}", process.end().unwrap_or_default())
                }
            };
            let name = &launch.model_name;
            return Err(Error::internal(format!(
                "Auto-complete failed for {name}: {what}"
            )));
        }
    };
    match config {
        Some(config) => context.complete(&ModelConfig::new(config)),
        None => Ok(()),
    }
}

impl sdk::Ready for Model {
    fn check_ready(&self) -> Result<(), Error> {
        let hosts: Vec<Arc<StubHost>> = {
            let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            hosts.iter().filter_map(Weak::upgrade).collect()
        };
        hosts.iter().try_for_each(|host| host.check_ready())
    }
}

/// One instance, with its process.
pub struct Instance {
    thread: InstanceThread,
    /// The GPU on which it gets inputs that lie there.
    input_device: Option<u32>,
    /// What it began and has not ended.
    open: Option<OpenExecution>,
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        let launch = &model.stubs.launch;
        let arguments = json!({
            "model_config": model.config,
            "model_instance_kind": context.kind.name(),
            "model_instance_name": context.name,
            "model_instance_device_id": context.device_id.to_string(),
            "model_repository": model.directory,
            "model_version": model.version.to_string(),
            "model_name": launch.model_name,
        });
        let command = json!({ "k": "initialize", "args": arguments }).to_string();
        let devices = sdk::DeviceAccess::of(context);
        let thread = InstanceThread::start(&model.stubs, &context.name, command, devices)?;
        let mut hosts = model.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|host| host.strong_count() > 0);
        hosts.push(Arc::downgrade(&thread.host));
        let is_on_gpu = context.kind == sdk::Kind::Gpu && model.has_device_inputs;
        Ok(Instance {
            thread,
            input_device: u32::try_from(context.device_id).ok().filter(|_| is_on_gpu),
            open: None,
        })
    }

    fn execute(&mut self, _model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        let host = &*self.thread.host;
        let process = host.process()?;
        let execution = Execution::new(host, process, self.input_device, batch);
        execution.finish(host, batch);
        Ok(())
    }
}

impl sdk::OpenInstance for Instance {
    fn begin(
        &mut self,
        _model: &Model,
        batch: &Batch<'_>,
        limit: Duration,
    ) -> Result<Progress, Error> {
        let host = &*self.thread.host;
        self.open = match host.running_process() {
            Some(process) if self.input_device.is_none() => {
                Execution::new(host, process, None, batch).try_finish(host, batch, limit)
            }
            _ => Some(OpenExecution::Unsent),
        };
        Ok(match self.open {
            None => Progress::Done,
            Some(_) => Progress::Open,
        })
    }

    fn end(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        match self.open.take() {
            Some(OpenExecution::Sent(execution)) => {
                execution.finish(&self.thread.host, batch);
                Ok(())
            }
            Some(OpenExecution::Unsent) => sdk::Instance::execute(self, model, batch),
            None => Ok(()),
        }
    }
}
