//! A model's and a backend's configuration, read from the server's JSON.

use std::ffi::{CStr, CString};

use serde_json::Value;

use crate::batch_tensor::{BatchInput, BatchInputKind, BatchOutput};
use crate::error::c_string;
use crate::{DataType, Error};

/// A model's configuration: the JSON of `config.pbtxt` with the server's defaults filled in.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    json: Value,
}

/// One input or output of a configuration.
#[derive(Clone, Debug)]
pub struct TensorConfig {
    pub name: CString,
    pub data_type: DataType,
    /// As the client sees them, without the batch dimension; -1 is variable.
    pub dims: Vec<i64>,
    /// As the model sees them, where that differs.
    pub reshape: Option<Vec<i64>>,
    pub is_optional: bool,
    pub is_ragged: bool,
}

impl TensorConfig {
    /// The name as text; names come from JSON and so are UTF-8.
    pub fn name(&self) -> &str {
        text(&self.name)
    }

    /// The tensor with this name, which must have this data type: for backends whose models all
    /// have the same tensors.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not there or has another type.
    pub fn expect<'t>(
        tensors: &'t [TensorConfig],
        name: &str,
        data_type: DataType,
    ) -> Result<&'t TensorConfig, Error> {
        let tensor = tensors
            .iter()
            .find(|tensor| tensor.name() == name)
            .ok_or_else(|| {
                let names: Vec<&str> = tensors.iter().map(TensorConfig::name).collect();
                Error::invalid(format!(
                    "expected a tensor named {name}, got {}",
                    names.join(", ")
                ))
            })?;
        if tensor.data_type == data_type {
            return Ok(tensor);
        }
        Err(Error::invalid(format!(
            "expected {name} datatype to be {}, got {}",
            data_type.name(),
            tensor.data_type.config_name()
        )))
    }

    /// Dimensions as the model sees them, without the batch dimension.
    pub fn model_dims(&self) -> &[i64] {
        self.reshape.as_deref().unwrap_or(&self.dims)
    }
}

/// An implicit state of a sequence model: the output that carries it on and the input that brings
/// it back.
#[derive(Clone, Debug)]
pub struct StateConfig {
    pub input: CString,
    pub output: CString,
    pub data_type: DataType,
    pub dims: Vec<i64>,
}

/// An input that the server adds to tell a model about its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlInput {
    pub name: String,
    /// `CONTROL_SEQUENCE_START` and so on.
    pub kind: String,
    pub data_type: DataType,
}

impl ModelConfig {
    pub fn new(json: Value) -> Self {
        ModelConfig { json }
    }

    /// # Errors
    /// `Internal` if the server's text is no JSON object.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        match serde_json::from_slice(text) {
            Ok(json @ Value::Object(_)) => Ok(ModelConfig { json }),
            Ok(_) => Err(Error::internal("model configuration is no JSON object")),
            Err(error) => Err(Error::internal(format!(
                "model configuration is no JSON: {error}"
            ))),
        }
    }

    pub fn json(&self) -> &Value {
        &self.json
    }

    pub fn json_mut(&mut self) -> &mut Value {
        &mut self.json
    }

    /// Rows that one execution may have; 0 if the model does not batch.
    pub fn max_batch_size(&self) -> i64 {
        self.json
            .get("max_batch_size")
            .and_then(integer)
            .unwrap_or(0)
    }

    pub fn default_model_filename(&self) -> Option<&str> {
        let name = self.json.get("default_model_filename")?.as_str()?;
        (!name.is_empty()).then_some(name)
    }

    pub fn is_decoupled(&self) -> bool {
        self.json
            .pointer("/model_transaction_policy/decoupled")
            .and_then(Value::as_bool)
            .unwrap_or(false)
    }

    /// `optimization { priority }` as the priority of a stream: lower numbers go first, 0 is usual.
    /// The driver takes the nearest that a device has.
    pub fn stream_priority(&self) -> i32 {
        // No device has more than a handful of them.
        const FAR: i32 = 100;
        let priority = self.json.pointer("/optimization/priority");
        match priority.and_then(Value::as_str) {
            Some("PRIORITY_MAX") => -FAR,
            Some("PRIORITY_MIN") => FAR,
            _ => 0,
        }
    }

    /// # Errors
    /// `InvalidArgument` if a tensor has no name, or a data type or dimension that no tensor can
    /// have.
    pub fn inputs(&self) -> Result<Vec<TensorConfig>, Error> {
        self.tensors("input")
    }

    /// # Errors
    /// As [`inputs`](Self::inputs).
    pub fn outputs(&self) -> Result<Vec<TensorConfig>, Error> {
        self.tensors("output")
    }

    /// Implicit states of a sequence model; none for other models.
    ///
    /// # Errors
    /// As [`inputs`](Self::inputs).
    pub fn states(&self) -> Result<Vec<StateConfig>, Error> {
        array(self.json.pointer("/sequence_batching/state"))
            .iter()
            .map(|state| {
                Ok(StateConfig {
                    input: c_string(string(state, "input_name")?),
                    output: c_string(string(state, "output_name")?),
                    data_type: data_type(state)?,
                    dims: dims(state.get("dims"))?,
                })
            })
            .collect()
    }

    /// Control inputs of a sequence model, in the order of the configuration.
    ///
    /// # Errors
    /// `InvalidArgument` if a control has no name.
    pub fn controls(&self) -> Result<Vec<ControlInput>, Error> {
        let mut controls = Vec::new();
        for input in array(self.json.pointer("/sequence_batching/control_input")) {
            let name = string(input, "name")?;
            for control in array(input.get("control")) {
                controls.push(ControlInput {
                    name: name.to_owned(),
                    kind: control
                        .get("kind")
                        .and_then(Value::as_str)
                        .unwrap_or("CONTROL_SEQUENCE_START")
                        .to_owned(),
                    data_type: control_type(control)?,
                });
            }
        }
        Ok(controls)
    }

    /// Inputs that describe the batch.
    ///
    /// # Errors
    /// `InvalidArgument` if one has no source, or a kind or data type that there is not.
    pub fn batch_inputs(&self) -> Result<Vec<BatchInput>, Error> {
        array(self.json.get("batch_input"))
            .iter()
            .map(|input| {
                // The first kind is left out where all members are not shown.
                let kind = input.get("kind").and_then(Value::as_str);
                Ok(BatchInput {
                    kind: BatchInputKind::parse(kind.unwrap_or("BATCH_ELEMENT_COUNT"))?,
                    data_type: data_type(input)?,
                    targets: names(input, "target_name").collect(),
                    source: source(input)?,
                })
            })
            .collect()
    }

    /// Outputs that are cut apart by the shapes of inputs. Their dimensions are those of the
    /// outputs that they are shown as.
    ///
    /// # Errors
    /// `InvalidArgument` if one has no source, or names an output that there is not.
    pub fn batch_outputs(&self) -> Result<Vec<BatchOutput>, Error> {
        let outputs = self.outputs()?;
        let mut found = Vec::new();
        for batch_output in array(self.json.get("batch_output")) {
            for target in names(batch_output, "target_name") {
                let output = outputs
                    .iter()
                    .find(|output| output.name == target)
                    .ok_or_else(|| {
                        Error::invalid(format!(
                            "batch output '{}' is not an output of the model",
                            target.to_string_lossy()
                        ))
                    })?;
                let batch_dim = (self.max_batch_size() > 0).then_some(-1);
                found.push(BatchOutput {
                    source: source(batch_output)?,
                    dims: batch_dim.into_iter().chain(output.dims.clone()).collect(),
                    target,
                });
            }
        }
        Ok(found)
    }

    /// Instances over all groups.
    pub fn instance_count(&self) -> u64 {
        array(self.json.get("instance_group"))
            .iter()
            .map(|group| {
                let count = group.get("count").and_then(integer).unwrap_or(1);
                u64::try_from(count).unwrap_or(1)
            })
            .sum()
    }

    /// The `string_value` of an entry of `parameters`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.json
            .get("parameters")?
            .get(name)?
            .get("string_value")?
            .as_str()
    }

    /// Names of all `parameters`.
    pub fn parameter_names(&self) -> impl Iterator<Item = &str> {
        self.json
            .get("parameters")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|parameters| parameters.keys().map(String::as_str))
    }

    /// # Errors
    /// `InvalidArgument` if the parameter is there and is no integer.
    pub fn integer_parameter(&self, name: &str) -> Result<Option<i64>, Error> {
        self.parameter(name)
            .map(|value| {
                value.trim().parse().map_err(|_| {
                    Error::invalid(format!(
                        "expected an integer for parameter '{name}', got '{value}'"
                    ))
                })
            })
            .transpose()
    }

    /// # Errors
    /// `InvalidArgument` if the parameter is there and is neither of true, false, 1, 0.
    pub fn boolean_parameter(&self, name: &str) -> Result<Option<bool>, Error> {
        self.parameter(name)
            .map(|value| boolean(value, name))
            .transpose()
    }

    fn tensors(&self, key: &str) -> Result<Vec<TensorConfig>, Error> {
        array(self.json.get(key))
            .iter()
            .map(|tensor| {
                let reshape = tensor.get("reshape").filter(|value| !value.is_null());
                Ok(TensorConfig {
                    name: c_string(string(tensor, "name")?),
                    data_type: data_type(tensor)?,
                    dims: dims(tensor.get("dims"))?,
                    reshape: reshape.map(|value| dims(value.get("shape"))).transpose()?,
                    is_optional: flag(tensor, "optional"),
                    is_ragged: flag(tensor, "allow_ragged_batch"),
                })
            })
            .collect()
    }
}

/// What `--backend-config` set for a backend.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    json: Value,
}

impl BackendConfig {
    /// # Errors
    /// `Internal` if the server's text is not empty and no JSON.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(BackendConfig { json: Value::Null });
        }
        serde_json::from_slice(text)
            .map(|json| BackendConfig { json })
            .map_err(|error| Error::internal(format!("backend configuration is no JSON: {error}")))
    }

    /// As the server wrote it.
    pub(crate) fn text(&self) -> String {
        self.json.to_string()
    }

    /// The value of a command-line setting, such as `default-max-batch-size`.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.json.get("cmdline")?.get(name)?.as_str()
    }

    /// # Errors
    /// `InvalidArgument` if the setting is there and is no integer.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, Error> {
        self.setting(name)
            .map(|value| {
                value.trim().parse().map_err(|_| {
                    Error::invalid(format!(
                        "expected an integer for backend setting '{name}', got '{value}'"
                    ))
                })
            })
            .transpose()
    }

    /// # Errors
    /// `InvalidArgument` if the setting is there and is neither of true, false, 1, 0.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, Error> {
        self.setting(name)
            .map(|value| boolean(value, name))
            .transpose()
    }
}

/// A name that came from JSON, as text.
pub(crate) fn text(name: &CStr) -> &str {
    name.to_str().unwrap_or_default()
}

fn boolean(value: &str, name: &str) -> Result<bool, Error> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Error::invalid(format!(
            "expected true or false for '{name}', got '{value}'"
        ))),
    }
}

fn array(value: Option<&Value>) -> &[Value] {
    value
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn names<'v>(object: &'v Value, key: &str) -> impl Iterator<Item = CString> + use<'v> {
    let names = array(object.get(key)).iter().filter_map(Value::as_str);
    names.map(c_string)
}

/// The one input that a batch input or output is made from.
fn source(object: &Value) -> Result<CString, Error> {
    names(object, "source_input")
        .next()
        .ok_or_else(|| Error::invalid("a batch input or output has no source input"))
}

fn flag(object: &Value, key: &str) -> bool {
    object.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn string<'v>(object: &'v Value, key: &str) -> Result<&'v str, Error> {
    object
        .get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| Error::invalid(format!("model configuration has an entry without '{key}'")))
}

/// 64-bit integers are text in some JSON renderings of protobuf messages.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    value
        .as_i64()
        .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
}

fn dims(value: Option<&Value>) -> Result<Vec<i64>, Error> {
    array(value)
        .iter()
        .map(|value| {
            integer(value).ok_or_else(|| {
                Error::invalid(format!(
                    "model configuration has a dimension that is no integer: {value}"
                ))
            })
        })
        .collect()
}

fn data_type(object: &Value) -> Result<DataType, Error> {
    let name = object
        .get("data_type")
        .and_then(Value::as_str)
        .unwrap_or("TYPE_INVALID");
    DataType::from_config_name(name).ok_or_else(|| {
        Error::invalid(format!(
            "unsupported datatype {name} in the model configuration"
        ))
    })
}

/// A boolean control has the type of its pair of values, others name theirs.
fn control_type(control: &Value) -> Result<DataType, Error> {
    let pair = |key: &str| !array(control.get(key)).is_empty();
    if pair("int32_false_true") {
        Ok(DataType::Int32)
    } else if pair("fp32_false_true") {
        Ok(DataType::Fp32)
    } else if pair("bool_false_true") {
        Ok(DataType::Bool)
    } else {
        data_type(control)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{
        "name": "m", "max_batch_size": 8,
        "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": ["-1", 3],
                   "reshape": {"shape": [3]}, "optional": true},
                  {"name": "B", "data_type": "TYPE_STRING", "dims": [1],
                   "allow_ragged_batch": true}],
        "output": [{"name": "C", "data_type": "TYPE_BF16", "dims": []}],
        "instance_group": [{"count": 3, "kind": "KIND_CPU"}, {"count": 2}],
        "sequence_batching": {
            "control_input": [
                {"name": "START", "control": [
                    {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]},
                {"name": "ID", "control": [
                    {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}]}],
            "state": [{"input_name": "si", "output_name": "so",
                       "data_type": "TYPE_FP32", "dims": [2, 1]}]},
        "parameters": {"threads": {"string_value": "4"}, "arena": {"string_value": "False"},
                       "bad": {"string_value": "x"}},
        "model_transaction_policy": {"decoupled": true}, "default_model_filename": ""
    }"#;

    #[test]
    fn priorities_of_streams() {
        for (text, expected) in [
            ("{}", 0),
            (r#"{"optimization": {"priority": "PRIORITY_DEFAULT"}}"#, 0),
            (r#"{"optimization": {"priority": "PRIORITY_MAX"}}"#, -100),
            (r#"{"optimization": {"priority": "PRIORITY_MIN"}}"#, 100),
        ] {
            let config = ModelConfig::parse(text.as_bytes()).unwrap();
            assert_eq!(config.stream_priority(), expected, "{text}");
        }
    }

    #[test]
    fn reads_a_model_configuration() {
        let config = ModelConfig::parse(CONFIG.as_bytes()).unwrap();
        assert_eq!(config.max_batch_size(), 8);
        assert_eq!(config.default_model_filename(), None);
        assert!(config.is_decoupled());
        assert_eq!(config.instance_count(), 5);
        let inputs = config.inputs().unwrap();
        assert_eq!(inputs[0].name(), "A");
        assert_eq!(inputs[0].dims, [-1, 3]);
        assert_eq!(inputs[0].model_dims(), [3]);
        assert!(inputs[0].is_optional && !inputs[0].is_ragged);
        assert_eq!(inputs[1].data_type, DataType::Bytes);
        assert!(inputs[1].is_ragged && inputs[1].reshape.is_none());
        assert_eq!(config.outputs().unwrap()[0].data_type, DataType::Bf16);
        let state = &config.states().unwrap()[0];
        assert_eq!((text(&state.input), text(&state.output)), ("si", "so"));
        let controls = config.controls().unwrap();
        assert_eq!(controls[0].data_type, DataType::Int32);
        assert_eq!(controls[1].kind, "CONTROL_SEQUENCE_CORRID");
        assert_eq!(controls[1].data_type, DataType::Uint64);
    }

    #[test]
    fn reads_parameters() {
        let config = ModelConfig::parse(CONFIG.as_bytes()).unwrap();
        assert_eq!(config.integer_parameter("threads"), Ok(Some(4)));
        assert_eq!(config.boolean_parameter("arena"), Ok(Some(false)));
        assert_eq!(config.integer_parameter("absent"), Ok(None));
        assert!(config.integer_parameter("bad").is_err());
        assert!(config.boolean_parameter("bad").is_err());
        assert_eq!(config.parameter_names().count(), 3);
    }

    #[test]
    fn refuses_what_is_no_configuration() {
        for text in ["", "[]", "{", "3"] {
            assert!(ModelConfig::parse(text.as_bytes()).is_err(), "{text}");
        }
        for tensor in [
            r#"{"data_type": "TYPE_FP32"}"#,
            r#"{"name": "A", "data_type": "TYPE_INVALID"}"#,
            r#"{"name": "A", "data_type": "TYPE_FP32", "dims": ["x"]}"#,
        ] {
            let config = ModelConfig::parse(format!(r#"{{"input": [{tensor}]}}"#).as_bytes());
            assert!(config.unwrap().inputs().is_err(), "{tensor}");
        }
    }

    #[test]
    fn reads_backend_settings() {
        let text =
            br#"{"cmdline": {"default-max-batch-size": "4", "auto-complete-config": "true"}}"#;
        let config = BackendConfig::parse(text).unwrap();
        assert_eq!(config.integer("default-max-batch-size"), Ok(Some(4)));
        assert_eq!(config.boolean("auto-complete-config"), Ok(Some(true)));
        assert_eq!(config.setting("absent"), None);
        assert!(config.integer("auto-complete-config").is_err());
        let empty = BackendConfig::parse(b"").unwrap();
        assert_eq!(empty.setting("absent"), None);
    }
}
