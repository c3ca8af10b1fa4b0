//! The backend, and its models.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{OnlyEngine, threads};
use sdk::serde_json::Value;
use sdk::{BackendContext, Batch, Error, InstanceContext, Kind, ModelConfig, ModelContext};

use crate::capi::{Device, Options};
use crate::deliver::OutputPlan;
use crate::engine::Engine;
use crate::instance::{Instance, Plan};
use crate::pipeline_file::PipelineFile;
use crate::signature::Signature;
use crate::{autoserialize, complete, config_text, settings, validate};

/// Environment variable that names the interpreter for pipelines in Python.
const PYTHON_VARIABLE: &str = "CONCH_DALI_PYTHON";

/// What all models of the backend share.
pub struct Backend {
    library: Option<PathBuf>,
    plugins: Vec<PathBuf>,
    is_releasing: bool,
    python: PathBuf,
    /// The loader takes two versions of DALI for one, as their parts have the same names.
    engine: OnlyEngine<Engine>,
}

impl sdk::Backend for Backend {
    type Model = Model;

    fn initialize(context: &BackendContext) -> Result<Self, Error> {
        let config = context.config();
        let python = config
            .setting(settings::PYTHON)
            .map(str::to_owned)
            .or_else(|| std::env::var(PYTHON_VARIABLE).ok())
            .filter(|python| !python.is_empty());
        Ok(Backend {
            library: settings::LIBRARY.for_backend(context),
            plugins: settings::names(config.setting(settings::PLUGINS))
                .map(PathBuf::from)
                .collect(),
            is_releasing: config.boolean(settings::RELEASE)?.unwrap_or(false),
            python: PathBuf::from(python.unwrap_or_else(|| "python3".to_owned())),
            engine: OnlyEngine::new(settings::LIBRARY),
        })
    }
}

/// A loaded model version.
pub struct Model {
    name: String,
    config: ModelConfig,
    plan: Plan,
}

impl sdk::Model for Model {
    type Backend = Backend;
    type Instance = Instance;

    fn initialize(backend: &Backend, context: &mut ModelContext) -> Result<Self, Error> {
        let name = context.name().to_owned();
        let named = |error: Error| error.context(format_args!("unable to load model '{name}'"));
        let library = settings::LIBRARY.for_model(context.config(), backend.library.as_deref())?;
        let engine = backend.engine.get(&library, |library| {
            Engine::open(library, &backend.plugins, backend.is_releasing)
        })?;
        let file = find(backend, context).map_err(named)?;
        let file = Arc::new(file);
        let signature = probe(&engine, &file, context).map_err(named)?;
        if context.may_complete()? {
            let completed = complete::complete(context.config(), &signature).map_err(named)?;
            context.complete(&completed)?;
        }
        validate::validate(context.config(), &signature).map_err(named)?;
        settings::threads(context.config()).map_err(named)?;
        let outputs = output_plans(context.config())?;
        engine.enter();
        Ok(Model {
            plan: Plan {
                engine,
                file,
                inputs: signature.inputs,
                outputs,
                is_batching: context.config().max_batch_size() > 0,
            },
            config: context.config().clone(),
            name,
        })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.plan.engine.leave();
    }
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        let device = match context.kind {
            Kind::Gpu => Device::Gpu(context.device_id),
            _ => Device::Cpu,
        };
        let thread_count = settings::threads(&model.config)?
            .unwrap_or_else(|| threads::share_of_cpus(&model.config, context));
        let options = Options {
            device,
            thread_count,
            max_batch_size: max_batch_size(&model.config)?,
        };
        Instance::new(&model.plan, options)
            .map_err(|error| error.context(format_args!("unable to load model '{}'", model.name)))
    }

    fn execute(&mut self, _: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        self.run(batch);
        Ok(())
    }
}

/// The model's pipeline: the serialised file, or one in Python that is serialised now.
fn find(backend: &Backend, context: &ModelContext) -> Result<PipelineFile, Error> {
    let directory = context.version_directory();
    let configured = context.config().default_model_filename();
    let path = directory.join(configured.unwrap_or("model.dali"));
    let definition = directory.join("dali.py");
    let parsed = if path.extension().is_some_and(|extension| extension == "py") {
        serialize(backend, &path)
    } else {
        read(&path)
    };
    match parsed {
        Err(_) if definition.exists() && definition != path => serialize(backend, &definition),
        parsed => parsed,
    }
}

fn read(path: &Path) -> Result<PipelineFile, Error> {
    let bytes = fs::read(path).map_err(|error| {
        Error::unavailable(format!(
            "there is no pipeline '{}', nor a dali.py beside it: {error}",
            path.display()
        ))
    })?;
    PipelineFile::parse(bytes).map_err(|error| error.context(format_args!("'{}'", path.display())))
}

fn serialize(backend: &Backend, definition: &Path) -> Result<PipelineFile, Error> {
    PipelineFile::parse(autoserialize::serialize(&backend.python, definition)?)
}

/// What the pipeline declares, of one that is built for that and gone again.
fn probe(engine: &Engine, file: &PipelineFile, context: &ModelContext) -> Result<Signature, Error> {
    let config = context.config();
    let is_batching =
        config.max_batch_size() > 0 || (context.may_complete()? && !is_said_not_to_batch(context));
    let mut refused = None;
    for device in devices(config) {
        let options = Options {
            device,
            thread_count: 1,
            max_batch_size: max_batch_size(config)?,
        };
        let pipeline = match engine.build(file, &options) {
            Ok(pipeline) => pipeline,
            Err(error) => {
                refused.get_or_insert(error);
                continue;
            }
        };
        let mut outputs = pipeline.outputs()?;
        let split: Vec<_> = settings::names(config.parameter(settings::SPLIT)).collect();
        for output in &mut outputs {
            if split.contains(&output.name()) {
                output.dim_count = output.dim_count.map(|count| count.saturating_sub(1));
            }
        }
        return Ok(Signature {
            inputs: pipeline.inputs()?,
            outputs,
            batch_size: file.batch_size(),
            is_batching,
        });
    }
    Err(refused.unwrap_or_else(|| Error::internal("no device to build the pipeline on")))
}

/// Whether the configuration says `max_batch_size: 0`, instead of nothing.
fn is_said_not_to_batch(context: &ModelContext) -> bool {
    let text = fs::read_to_string(context.directory().join("config.pbtxt"));
    text.is_ok_and(|text| config_text::max_batch_size(&text) == Some(0))
}

/// Where to build a pipeline to see what it declares: where its instances will be, if that is said.
fn devices(config: &ModelConfig) -> Vec<Device> {
    let groups = config
        .json()
        .get("instance_group")
        .and_then(Value::as_array);
    let groups = groups.map(Vec::as_slice).unwrap_or_default();
    let is_kind =
        |group: &&Value, kind: &str| group.get("kind").and_then(Value::as_str) == Some(kind);
    if let Some(group) = groups.iter().find(|group| is_kind(group, "KIND_GPU")) {
        let gpu = group.pointer("/gpus/0").and_then(validate::integer);
        return vec![Device::Gpu(
            gpu.and_then(|gpu| i32::try_from(gpu).ok()).unwrap_or(0),
        )];
    }
    if !groups.is_empty() && groups.iter().all(|group| is_kind(&group, "KIND_CPU")) {
        return vec![Device::Cpu];
    }
    vec![Device::Cpu, Device::Gpu(0)]
}

fn max_batch_size(config: &ModelConfig) -> Result<Option<i32>, Error> {
    match config.max_batch_size() {
        ..=0 => Ok(None),
        size => i32::try_from(size)
            .map(Some)
            .map_err(|_| Error::invalid(format!("max_batch_size {size} is too large"))),
    }
}

fn output_plans(config: &ModelConfig) -> Result<Vec<OutputPlan>, Error> {
    let split: Vec<_> = settings::names(config.parameter(settings::SPLIT)).collect();
    Ok(config
        .outputs()?
        .into_iter()
        .map(|output| OutputPlan {
            is_split: split.contains(&output.name()),
            name: output.name,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_where_instances_will_be() {
        let both = vec![Device::Cpu, Device::Gpu(0)];
        for (groups, expected) in [
            ("", both.clone()),
            (r#"{"kind": "KIND_AUTO"}"#, both.clone()),
            (r#"{"count": 2}"#, both),
            (r#"{"kind": "KIND_CPU"}"#, vec![Device::Cpu]),
            (
                r#"{"kind": "KIND_CPU"}, {"kind": "KIND_GPU", "gpus": [1, 2]}"#,
                vec![Device::Gpu(1)],
            ),
            (r#"{"kind": "KIND_GPU"}"#, vec![Device::Gpu(0)]),
        ] {
            let json = format!(r#"{{"instance_group": [{groups}]}}"#);
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            assert_eq!(devices(&config), expected, "{groups}");
        }
    }
}
