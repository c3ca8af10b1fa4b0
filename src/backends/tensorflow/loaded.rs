//! A model in TensorFlow: how it gets there, and the session that the frame runs.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use conch_backend_sdk as sdk;
use prost::Message;
use sdk::engine::{self, Feed, Signature, Target, c_string};
use sdk::serde_json::Value;
use sdk::{Error, ModelConfig};

use crate::element_type;
use crate::engine::{Engine, ThreadPools, calm};
use crate::files::{GraphFile, read_saved_model};
use crate::messages::{ConfigProto, GraphDef, GraphOptions, MetaGraphDef, OptimizerOptions};
use crate::retention::may_keep_inputs;
use crate::settings::{Format, ModelSettings};
use crate::signature::{DEFAULT_SIGNATURE, ModelTensor, ModelTensors, split_name};
use crate::tf::{Graph, Output, Port};
use crate::validate;

/// Where operations may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    Cpus,
    /// Where the model, or TensorFlow, puts them.
    Any,
}

/// How sessions of a model are made.
pub struct Source {
    pub engine: Arc<Engine>,
    pub model_name: String,
    pub format: Format,
    /// The file of a GraphDef, the folder of a SavedModel.
    pub path: PathBuf,
    pub settings: ModelSettings,
    pub allows_soft_placement: bool,
    /// Operations that make a new session ready.
    pub init_ops: Vec<CString>,
    /// Thread counts without effect are told of once.
    pub told: Once,
}

impl Source {
    /// What a SavedModel takes and makes, without a session where the file says so: sessions belong
    /// to the threads of instances, whose CPUs TensorFlow's threads get.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn saved_tensors(&self, config: &ModelConfig) -> Result<ModelTensors, Error> {
        let Some(model) = read_saved_model(&self.path)? else {
            return Ok(self.load(config, Devices::Cpus, 1)?.tensors);
        };
        let graph = model.graph_tagged(&self.settings.tag.to_string_lossy())?;
        let signature = self.settings.signature.as_deref();
        ModelTensors::of_saved_model(&self.model_name, graph, signature)
    }

    /// Loads the model into a new session. `own_threads` are for the operations of a session that
    /// shares none.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's own words; what file or configuration have wrong.
    pub fn load(
        &self,
        config: &ModelConfig,
        devices: Devices,
        own_threads: usize,
    ) -> Result<LoadedModel, Error> {
        let pools = self.engine.pools(&self.settings)?;
        self.told
            .call_once(|| pools.tell_of_threads(&self.model_name, &self.settings));
        let options = self.session_options(pools, devices, own_threads);
        let loaded = match self.format {
            Format::SavedModel => self.load_saved_model(&options)?,
            Format::GraphDef => self.load_graph(config, &options)?,
        };
        for operation in &self.init_ops {
            loaded.graph.run_operation(operation)?;
        }
        Ok(loaded)
    }

    fn session_options(
        &self,
        pools: ThreadPools,
        devices: Devices,
        own_threads: usize,
    ) -> ConfigProto {
        let settings = &self.settings;
        let inter_op_threads = match settings.inter_op_threads {
            0 if settings.has_own_threads => i32::try_from(own_threads).unwrap_or(i32::MAX),
            // The instance's thread does what a single one would do, and need not wake it.
            0 if pools.inter_op_threads == 1 => -1,
            0 => pools.inter_op_threads,
            count => count,
        };
        ConfigProto {
            device_count: match devices {
                Devices::Cpus => [("GPU".to_owned(), 0)].into(),
                Devices::Any => [].into(),
            },
            intra_op_parallelism_threads: pools.intra_op_threads,
            inter_op_parallelism_threads: inter_op_threads,
            allow_soft_placement: self.allows_soft_placement,
            use_per_session_threads: settings.has_own_threads,
            graph_options: Some(GraphOptions {
                optimizer_options: Some(OptimizerOptions {
                    global_jit_level: settings.jit_level,
                }),
            }),
            experimental: Some(calm()),
        }
    }

    fn load_saved_model(&self, options: &ConfigProto) -> Result<LoadedModel, Error> {
        read_saved_model(&self.path)?;
        let library = &self.engine.library;
        let read = |bytes: &[u8]| {
            MetaGraphDef::decode(bytes)
                .map_err(|error| Error::internal(format!("TensorFlow's MetaGraphDef: {error}")))
        };
        let tags = [self.settings.tag.clone()];
        let (graph, meta_graph) = Graph::load(library, &self.path, &tags, options, read)?;
        let signature = self.settings.signature.as_deref();
        let tensors = ModelTensors::of_saved_model(&self.model_name, &meta_graph, signature)?;
        if signature.is_none() && tensors.signature_name != DEFAULT_SIGNATURE {
            sdk::warning!(
                "unable to find serving signature '{DEFAULT_SIGNATURE}' of model '{}', using \
                 signature '{}'",
                self.model_name,
                tensors.signature_name
            );
        }
        let definition = meta_graph.graph_def.unwrap_or_default();
        self.with_tensors(graph, tensors, &definition)
    }

    fn load_graph(
        &self,
        config: &ModelConfig,
        options: &ConfigProto,
    ) -> Result<LoadedModel, Error> {
        let file = GraphFile::read(&self.model_name, &self.path)?;
        let (inputs, outputs) = (file.inputs(), file.outputs());
        validate::validate_names(&self.model_name, config, &inputs, &outputs)?;
        let graph = Graph::import(&self.engine.library, &file.bytes, options)?;
        let tensors = ModelTensors {
            signature_name: String::new(),
            inputs: self.find(&graph, "input", input_names(config)?)?,
            outputs: self.find(&graph, "output", output_names(config)?)?,
        };
        self.with_tensors(graph, tensors, &file.graph)
    }

    fn with_tensors(
        &self,
        graph: Graph,
        tensors: ModelTensors,
        definition: &GraphDef,
    ) -> Result<LoadedModel, Error> {
        let ports = |role: &str, tensors: &[ModelTensor]| {
            let ports = tensors.iter().map(|tensor| {
                let port = graph.port(&tensor.operation, tensor.index);
                port.ok_or_else(|| self.no_tensor(role, tensor.name()))
            });
            ports.collect::<Result<Vec<_>, _>>()
        };
        let (inputs, outputs) = (
            ports("input", &tensors.inputs)?,
            ports("output", &tensors.outputs)?,
        );
        let operators = self.engine.library.operators()?;
        let fetched = tensors.outputs.iter();
        let fetched = fetched.map(|tensor| tensor.operation.to_str().unwrap_or_default());
        let lends = !may_keep_inputs(definition, &operators, fetched);
        sdk::verbose!(
            "model '{}': TensorFlow {} inputs",
            self.model_name,
            if lends {
                "reads requests'"
            } else {
                "may keep, and so gets copies of,"
            }
        );
        Ok(LoadedModel {
            graph,
            tensors,
            inputs,
            outputs,
            lends,
        })
    }

    /// Tensors of a graph by their names. What they are called tells which they are, and the graph
    /// tells their type. Shapes are the configuration's, as upstream has it.
    fn find(
        &self,
        graph: &Graph,
        role: &str,
        names: Vec<CString>,
    ) -> Result<Vec<ModelTensor>, Error> {
        let tensors = names.into_iter().map(|name| {
            let text = name.to_str().unwrap_or_default();
            let missing = || self.no_tensor(role, text);
            let (operation, index) = split_name(text).ok_or_else(missing)?;
            let operation = c_string(operation)?;
            let port = graph.port(&operation, index).ok_or_else(missing)?;
            let number = graph.element_type(port);
            let data_type = element_type::data_type(number).ok_or_else(|| {
                Error::internal(format!(
                    "unable to process {role} '{text}' for '{}', unsupported datatype '{}'",
                    self.model_name,
                    element_type::name_of(number)
                ))
            })?;
            Ok(ModelTensor {
                operation,
                index,
                data_type,
                dims: graph.is_scalar(port).then(Vec::new),
                name,
            })
        });
        tensors.collect()
    }

    fn no_tensor(&self, role: &str, name: &str) -> Error {
        Error::internal(format!(
            "unable to load model '{}', its graph has no tensor for {role} '{name}'",
            self.model_name
        ))
    }
}

/// Everything that a configuration feeds to a GraphDef.
fn input_names(config: &ModelConfig) -> Result<Vec<CString>, Error> {
    let mut names: Vec<_> = config
        .inputs()?
        .into_iter()
        .map(|input| input.name)
        .collect();
    for control in config.controls()? {
        names.push(c_string(&control.name)?);
    }
    names.extend(
        config
            .batch_inputs()?
            .into_iter()
            .flat_map(|input| input.targets),
    );
    names.extend(config.states()?.into_iter().map(|state| state.input));
    Ok(distinct(names))
}

/// Everything that it fetches.
fn output_names(config: &ModelConfig) -> Result<Vec<CString>, Error> {
    let mut names: Vec<_> = config
        .outputs()?
        .into_iter()
        .map(|output| output.name)
        .collect();
    names.extend(config.states()?.into_iter().map(|state| state.output));
    Ok(distinct(names))
}

fn distinct(mut names: Vec<CString>) -> Vec<CString> {
    names.sort_unstable();
    names.dedup();
    names
}

/// A model in a session of TensorFlow, which several instances may share.
pub struct LoadedModel {
    graph: Graph,
    pub tensors: ModelTensors,
    /// As many as the inputs and outputs, in their order.
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// TensorFlow may read inputs where they lie.
    lends: bool,
}

impl LoadedModel {
    fn input(&self, name: &CStr) -> Result<Port, Error> {
        position(&self.tensors.inputs, &self.inputs, name)
    }

    fn output(&self, name: &CStr) -> Result<Port, Error> {
        position(&self.tensors.outputs, &self.outputs, name)
    }
}

fn position(tensors: &[ModelTensor], ports: &[Port], name: &CStr) -> Result<Port, Error> {
    let found = tensors
        .iter()
        .zip(ports)
        .find(|(tensor, _)| *tensor.name == *name);
    let (_, port) = found.ok_or_else(|| {
        Error::internal(format!(
            "the model has no tensor '{}'",
            name.to_string_lossy()
        ))
    })?;
    Ok(*port)
}

/// What an instance runs.
pub struct Session {
    loaded: Arc<LoadedModel>,
    signature: Signature,
}

impl Session {
    /// Brings a loaded model and its configuration together.
    ///
    /// # Errors
    /// What they disagree about.
    pub fn new(
        model_name: &str,
        config: &ModelConfig,
        format: Format,
        loaded: Arc<LoadedModel>,
    ) -> Result<Self, Error> {
        let signature = loaded.tensors.signature(config)?;
        match format {
            Format::SavedModel => {
                validate::validate(model_name, config, &loaded.tensors, &signature)?;
            }
            // Names were looked at when the graph was loaded.
            Format::GraphDef => engine::validate::validate(model_name, config, &signature)?,
        }
        Ok(Session { loaded, signature })
    }
}

impl engine::Session for Session {
    type Output = Output;

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn run(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Output>>, Error> {
        let loaded = &self.loaded;
        let inputs = feeds
            .iter()
            .map(|feed| loaded.input(feed.name))
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = targets
            .iter()
            .map(|target| loaded.output(&target.info.name))
            .collect::<Result<Vec<_>, _>>()?;
        let made = loaded.graph.run(feeds, &inputs, &outputs, loaded.lends)?;
        Ok(made.into_iter().map(Some).collect())
    }
}

/// Operations that a file lists which make a new session ready: in the version's folder, else in
/// the model's.
///
/// # Errors
/// `Internal` if it cannot be read; `InvalidArgument` if it is not what it should be.
pub fn init_ops(version_folder: &Path, folder: &Path, file: &str) -> Result<Vec<CString>, Error> {
    let in_version = version_folder.join(file);
    let path = if in_version.exists() {
        in_version
    } else {
        folder.join(file)
    };
    let text = std::fs::read(&path)
        .map_err(|error| Error::internal(format!("{}: {error}", path.display())))?;
    let json: Value = sdk::serde_json::from_slice(&text)
        .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
    let list = json.get("init_ops").and_then(Value::as_array);
    let names = list.and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let names = names.ok_or_else(|| {
        Error::invalid(format!(
            "{}: expected an array of strings named 'init_ops'",
            path.display()
        ))
    })?;
    names.into_iter().map(c_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_init_ops_in_the_version_first() {
        let folder = std::env::temp_dir().join(format!("conch-init-ops-{}", std::process::id()));
        let version = folder.join("1");
        std::fs::create_dir_all(&version).unwrap();
        let read = || init_ops(&version, &folder, "ops.json");
        assert!(read().unwrap_err().message().contains("ops.json"));
        std::fs::write(
            folder.join("ops.json"),
            r#"{"init_ops": ["init", "tables"]}"#,
        )
        .unwrap();
        assert_eq!(read().unwrap(), [c"init".to_owned(), c"tables".to_owned()]);
        for wrong in ["", "[]", r#"{"init_ops": "init"}"#, r#"{"init_ops": [1]}"#] {
            std::fs::write(version.join("ops.json"), wrong).unwrap();
            assert!(read().is_err(), "{wrong}");
        }
        std::fs::write(version.join("ops.json"), r#"{"init_ops": []}"#).unwrap();
        assert!(read().unwrap().is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
