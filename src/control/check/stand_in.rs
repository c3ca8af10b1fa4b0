//! Plug-ins that are looked for and never opened: the loader runs with them as with real ones, and
//! says what it would say, as far as that does not depend on what plug-ins do.

use std::path::PathBuf;
use std::sync::Arc;

use conch_config::{ModelConfig, PreferredGroup, ResolvedConfig};
use conch_engine::{
    Backend, BackendHost, BackendSpec, Batch, Error, ExecutionPolicy, Instance, InstanceSpec,
    LoadContext, Model, ModelVersion, PendingResponses, Response, ResponseParts,
};

use crate::loader::instance_specs;
use crate::{AgentAction, AgentContext, AgentHost, AgentModel, PluginHost};

/// In the error of a model that its backend completes: everything else is as it should be.
pub(super) const COMPLETED_BY_BACKEND: &str =
    "its backend completes the configuration, which only a load tells";

/// Finds the plug-ins of another host, and stands in for them.
pub(super) struct StandInHost {
    pub(super) real: Arc<dyn PluginHost>,
}

impl BackendHost for StandInHost {
    fn open(&self, spec: &BackendSpec) -> Result<Arc<dyn Backend>, Error> {
        self.real.find(spec)?;
        Ok(Arc::new(StandInBackend))
    }

    fn list(&self) -> Vec<(String, String, String)> {
        Vec::new()
    }

    fn finalize_all(&self) {}
}

impl PluginHost for StandInHost {
    fn agents(&self) -> &dyn AgentHost {
        self
    }
}

impl AgentHost for StandInHost {
    fn attach(&self, name: &str, context: AgentContext) -> Result<Arc<dyn AgentModel>, Error> {
        self.real.agents().find(name)?;
        Ok(Arc::new(StandInAgent(context.location)))
    }

    fn list(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// An agent that leaves the model where it is.
struct StandInAgent(PathBuf);

impl AgentModel for StandInAgent {
    fn act(&self, _: AgentAction) -> Result<(), Error> {
        Ok(())
    }

    fn location(&self) -> PathBuf {
        self.0.clone()
    }
}

struct StandInBackend;

impl Backend for StandInBackend {
    fn name(&self) -> &str {
        "stand-in"
    }

    fn execution_policy(&self) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn preferred_groups(&self) -> &[PreferredGroup] {
        &[]
    }

    fn allows_parallel_instances(&self) -> bool {
        false
    }

    fn complete_config(&self, config: &mut ModelConfig) {
        // The GPUs of the machine that is to serve are not looked for.
        conch_config::without_gpus(config);
    }

    fn load_model(self: Arc<Self>, context: LoadContext) -> Result<Arc<dyn Model>, Error> {
        let config = &context.config;
        check_model_file(&context)?;
        instance_specs(&context.name, &config.instance_groups)?;
        check_tensors(&config.message, context.may_complete)?;
        let mut config = (**config).clone();
        for group in &mut config.instance_groups {
            group.count = 1;
        }
        Ok(Arc::new(StandInModel(Arc::new(config))))
    }
}

/// Refuses a version without its model file, as the backends do that the server knows it of.
fn check_model_file(context: &LoadContext) -> Result<(), Error> {
    let config = &context.config.message;
    // An agent may bring the file.
    if config.model_repository_agents.is_some() {
        return Ok(());
    }
    let Some(name) = conch_config::model_file(config) else {
        return Ok(());
    };
    let file = context.path.join(context.version.to_string()).join(name);
    if file.exists() {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "unable to find '{}' for model '{}'",
        file.display(),
        context.name
    )))
}

/// Refuses tensors that are wrong whatever a backend adds to them, and those that a backend has to
/// complete first.
fn check_tensors(config: &ModelConfig, may_complete: bool) -> Result<(), Error> {
    if !may_complete {
        return Ok(conch_config::validate_io(config)?);
    }
    let filled = conch_config::with_placeholders(config);
    conch_config::validate_io(filled.as_ref().unwrap_or(config))?;
    match filled.is_some() || config.input.is_empty() || config.output.is_empty() {
        true => Err(Error::unavailable(COMPLETED_BY_BACKEND)),
        false => Ok(()),
    }
}

struct StandInModel(Arc<ResolvedConfig>);

impl Model for StandInModel {
    fn config(&self) -> Arc<ResolvedConfig> {
        Arc::clone(&self.0)
    }

    fn bind(&self, _: &Arc<ModelVersion>) {}

    fn create_instance(self: Arc<Self>, _: InstanceSpec) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(StandInInstance))
    }
}

/// Answers warm-up requests with nothing.
struct StandInInstance;

impl Instance for StandInInstance {
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        for request in batch.drain(..) {
            let response = Response::from(ResponseParts {
                model: Arc::clone(&request.shared().model),
                outputs: Default::default(),
                parameters: Vec::new(),
            });
            let handle = Arc::clone(request.handle());
            drop(request);
            pending.push(handle.shared(), Some(Ok(response)), true);
        }
    }
}
