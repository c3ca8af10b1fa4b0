//! Fills in what the configuration of a SavedModel leaves out, by the rules of upstream's
//! TensorFlow backend, which completes tensor by tensor. A GraphDef tells too little for that.

use conch_backend_sdk as sdk;
use sdk::serde_json::{Map, Value, json};
use sdk::{DataType, Error, ModelConfig};

use crate::signature::{ModelTensor, ModelTensors};

/// Completes batch size, scheduler, inputs and outputs.
///
/// # Errors
/// `Internal` if the configuration contradicts the model, or itself, about batching;
/// `InvalidArgument` if it leaves out the shape of a tensor that the model does not tell either.
pub fn complete(
    model_name: &str,
    config: &ModelConfig,
    tensors: &ModelTensors,
    default_max_batch_size: i64,
) -> Result<ModelConfig, Error> {
    let mut config = config.clone();
    let may_batch = default_max_batch_size > 0 || config.max_batch_size() > 0;
    let batches = batches(model_name, &config, tensors)? && may_batch;
    complete_batching(&mut config, batches, default_max_batch_size);
    let completion = Completion {
        model_name,
        batches,
    };
    completion.inputs(&mut config, &tensors.inputs)?;
    completion.outputs(&mut config, &tensors.outputs)?;
    Ok(config)
}

/// Whether the model batches: by its signature, where the configuration does not say otherwise. A
/// first dimension that varies may be the batch or not; configured shapes tell.
fn batches(model_name: &str, config: &ModelConfig, tensors: &ModelTensors) -> Result<bool, Error> {
    let can_batch = tensors.inputs.iter().chain(&tensors.outputs).all(|tensor| {
        let first = tensor.known_dims().first();
        first.is_none_or(|&dim| dim == -1)
    });
    let max_batch_size = config.max_batch_size();
    if !can_batch {
        if max_batch_size > 0 {
            return Err(Error::internal(format!(
                "unable to autofill for '{model_name}', configuration specified max-batch \
                 {max_batch_size} but model signature does not support batching"
            )));
        }
        return Ok(false);
    }
    let (inputs, outputs) = (list(config, "input"), list(config, "output"));
    if inputs.is_empty() && outputs.is_empty() {
        return Ok(true);
    }
    let mut hint = Hint::None;
    let configured = inputs.iter().zip(std::iter::repeat(&tensors.inputs));
    let configured = configured.chain(outputs.iter().zip(std::iter::repeat(&tensors.outputs)));
    for (entry, known) in configured {
        if entry.get("allow_ragged_batch").and_then(Value::as_bool) == Some(true) {
            // Ranks tell nothing in a model with ragged inputs.
            return Ok(true);
        }
        let tensor = known
            .iter()
            .find(|tensor| Some(tensor.name()) == name_of(entry));
        let rank = tensor.map_or(0, |tensor| tensor.known_dims().len());
        if rank == 0 {
            continue;
        }
        let said = match dim_count(entry) {
            0 => Hint::Weak,
            count if count == rank - 1 => Hint::Batches,
            _ => Hint::Plain,
        };
        hint = match (hint, said) {
            (Hint::Batches, Hint::Plain) | (Hint::Plain, Hint::Batches) => {
                return Err(Error::internal(format!(
                    "unable to autofill for '{model_name}', model tensor configurations are \
                     contradicting each other in terms of whether batching is supported"
                )));
            }
            (Hint::None | Hint::Weak, said) => said,
            (explicit, _) => explicit,
        };
    }
    Ok(matches!(hint, Hint::Weak | Hint::Batches))
}

/// What configured tensors say about batching.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    None,
    /// A tensor is named without a shape.
    Weak,
    /// A shape lacks one dimension of the model's.
    Batches,
    Plain,
}

fn complete_batching(config: &mut ModelConfig, batches: bool, default_max_batch_size: i64) {
    if config.max_batch_size() == 0 {
        let size = if batches { default_max_batch_size } else { 0 };
        set(config, "max_batch_size", json!(size));
    }
    let has_scheduler = ["sequence_batching", "dynamic_batching"]
        .iter()
        .any(|key| config.json().get(key).is_some_and(|value| !value.is_null()));
    if config.max_batch_size() > 1 && !has_scheduler {
        set(config, "dynamic_batching", json!({}));
    }
}

struct Completion<'m> {
    model_name: &'m str,
    batches: bool,
}

impl Completion<'_> {
    /// All inputs of the model, except those that describe the batch or the sequence.
    fn inputs(&self, config: &mut ModelConfig, tensors: &[ModelTensor]) -> Result<(), Error> {
        let mut inputs = list(config, "input");
        let others = supplied_names(config);
        for tensor in tensors {
            let configured = inputs
                .iter_mut()
                .find(|entry| name_of(entry) == Some(tensor.name()));
            match configured {
                Some(entry) => self.fill(entry, tensor)?,
                None if others.iter().any(|name| name == tensor.name()) => {}
                None => inputs.push(self.made(tensor)?),
            }
        }
        set(config, "input", Value::Array(inputs));
        Ok(())
    }

    /// All outputs of the model where none is configured, else only those that are.
    fn outputs(&self, config: &mut ModelConfig, tensors: &[ModelTensor]) -> Result<(), Error> {
        let mut outputs = list(config, "output");
        if outputs.is_empty() {
            for tensor in tensors {
                if tensor.known_dims().is_empty() {
                    return Err(Error::invalid(format!(
                        "Unable to autofill for '{}': the rank of model tensor '{}' is 0 which is \
                         not supported",
                        self.model_name,
                        tensor.name()
                    )));
                }
                outputs.push(self.made(tensor)?);
            }
        } else {
            for entry in &mut outputs {
                let name = name_of(entry).map(str::to_owned);
                let tensor = tensors
                    .iter()
                    .find(|tensor| Some(tensor.name()) == name.as_deref());
                if let Some(tensor) = tensor {
                    self.fill(entry, tensor)?;
                }
            }
        }
        set(config, "output", Value::Array(outputs));
        Ok(())
    }

    fn made(&self, tensor: &ModelTensor) -> Result<Value, Error> {
        let mut entry = json!({"name": tensor.name()});
        self.fill(&mut entry, tensor)?;
        Ok(entry)
    }

    /// Adds data type and dimensions where they are missing.
    fn fill(&self, entry: &mut Value, tensor: &ModelTensor) -> Result<(), Error> {
        let has_type = entry
            .get("data_type")
            .and_then(Value::as_str)
            .is_some_and(|name| DataType::from_config_name(name).is_some());
        let has_dims = entry
            .get("dims")
            .and_then(Value::as_array)
            .is_some_and(|dims| !dims.is_empty());
        let Some(object) = entry.as_object_mut() else {
            return Ok(());
        };
        if !has_type {
            insert(object, "data_type", json!(tensor.data_type.config_name()));
        }
        if has_dims {
            return Ok(());
        }
        let dims = tensor.known_dims();
        if dims.is_empty() {
            return Err(Error::invalid(format!(
                "Unable to autofill for '{}': the rank of model tensor '{}' is 0 and dimensions \
                 are not defined",
                self.model_name,
                tensor.name()
            )));
        }
        let dims = dims.get(usize::from(self.batches)..).unwrap_or_default();
        if dims.is_empty() {
            insert(object, "dims", json!([1]));
            insert(object, "reshape", json!({"shape": []}));
        } else {
            insert(object, "dims", json!(dims));
        }
        Ok(())
    }
}

/// Names of inputs that the server makes: of batch inputs and sequence controls.
fn supplied_names(config: &ModelConfig) -> Vec<String> {
    let json = config.json();
    let entries = |pointer: &str| {
        let list = json.pointer(pointer).and_then(Value::as_array);
        list.map(Vec::as_slice).unwrap_or_default().iter()
    };
    let targets = entries("/batch_input")
        .filter_map(|entry| entry.get("target_name").and_then(Value::as_array))
        .flatten()
        .filter_map(Value::as_str);
    let controls = entries("/sequence_batching/control_input").filter_map(name_of);
    let states = entries("/sequence_batching/state")
        .filter_map(|entry| entry.get("input_name").and_then(Value::as_str));
    targets
        .chain(controls)
        .chain(states)
        .map(str::to_owned)
        .collect()
}

fn list(config: &ModelConfig, key: &str) -> Vec<Value> {
    let list = config.json().get(key).and_then(Value::as_array);
    list.cloned().unwrap_or_default()
}

fn name_of(entry: &Value) -> Option<&str> {
    entry.get("name").and_then(Value::as_str)
}

/// Dimensions that the model sees of a configured tensor.
fn dim_count(entry: &Value) -> usize {
    let dims = match entry.get("reshape").filter(|reshape| !reshape.is_null()) {
        Some(reshape) => reshape.get("shape"),
        None => entry.get("dims"),
    };
    dims.and_then(Value::as_array).map_or(0, Vec::len)
}

fn set(config: &mut ModelConfig, key: &str, value: Value) {
    if let Some(object) = config.json_mut().as_object_mut() {
        insert(object, key, value);
    }
}

fn insert(object: &mut Map<String, Value>, key: &str, value: Value) {
    object.insert(key.to_owned(), value);
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    fn tensor(name: &str, dims: Option<&[i64]>) -> ModelTensor {
        ModelTensor {
            name: CString::new(name).unwrap(),
            operation: CString::new(name).unwrap(),
            index: 0,
            data_type: DataType::Fp32,
            dims: dims.map(<[i64]>::to_vec),
        }
    }

    fn completed(
        config: &str,
        input: Option<&[i64]>,
        output: Option<&[i64]>,
        default: i64,
    ) -> Result<Value, String> {
        let tensors = ModelTensors {
            signature_name: String::new(),
            inputs: vec![tensor("A", input)],
            outputs: vec![tensor("B", output)],
        };
        let config = ModelConfig::parse(config.as_bytes()).unwrap();
        complete("m", &config, &tensors, default)
            .map(|config| config.json().clone())
            .map_err(|error| error.message().to_owned())
    }

    const A: Option<&[i64]> = Some(&[-1, 16]);
    const B: Option<&[i64]> = Some(&[-1]);

    #[test]
    fn completes_models_that_batch() {
        assert_eq!(
            completed("{}", A, B, 4).unwrap(),
            json!({
                "max_batch_size": 4,
                "dynamic_batching": {},
                "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [16]}],
                "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [1],
                            "reshape": {"shape": []}}],
            })
        );
        let one = completed("{}", A, A, 1).unwrap();
        assert_eq!(one["max_batch_size"], 1);
        assert!(one.get("dynamic_batching").is_none());
        let none = completed("{}", A, A, 0).unwrap();
        assert_eq!(
            (&none["max_batch_size"], &none["input"][0]["dims"]),
            (&json!(0), &json!([-1, 16]))
        );
    }

    #[test]
    fn completes_models_that_do_not() {
        let value = completed("{}", Some(&[3, 2]), A, 4).unwrap();
        assert_eq!(value["max_batch_size"], 0);
        assert_eq!(value["input"][0]["dims"], json!([3, 2]));
        assert_eq!(value["output"][0]["dims"], json!([-1, 16]));
        assert_eq!(
            completed(r#"{"max_batch_size": 8}"#, Some(&[3, 2]), A, 4).unwrap_err(),
            "unable to autofill for 'm', configuration specified max-batch 8 but model signature \
             does not support batching"
        );
    }

    #[test]
    fn completes_tensor_by_tensor() {
        let config = r#"{"max_batch_size": 32, "sequence_batching": {},
            "input": [{"name": "A", "data_type": "TYPE_INVALID"}], "output": [{"name": "B"}]}"#;
        let value = completed(config, A, A, 4).unwrap();
        assert_eq!(value["max_batch_size"], 32);
        assert!(value.get("dynamic_batching").is_none());
        assert_eq!(
            value["input"],
            json!([{"name": "A", "data_type": "TYPE_FP32", "dims": [16]}])
        );
        assert_eq!(
            value["output"],
            json!([{"name": "B", "data_type": "TYPE_FP32", "dims": [16]}])
        );
        // What the model does not have is left for the check that follows.
        let other = r#"{"input": [{"name": "C", "dims": [1]}]}"#;
        let value = completed(other, A, A, 4).unwrap();
        assert_eq!(value["input"][0]["name"], "C");
        assert_eq!(value["input"][1]["name"], "A");
    }

    #[test]
    fn configured_shapes_say_whether_it_batches() {
        let config = |a: &str, b: &str| {
            format!(
                r#"{{"input": [{{"name": "A", "dims": {a}}}],
                     "output": [{{"name": "B", "dims": {b}}}]}}"#
            )
        };
        let size =
            |config: &str| completed(config, A, A, 4).map(|value| value["max_batch_size"].clone());
        assert_eq!(size(&config("[16]", "[16]")), Ok(json!(4)));
        assert_eq!(size(&config("[]", "[]")), Ok(json!(4)));
        assert_eq!(size(&config("[-1, 16]", "[]")), Ok(json!(0)));
        assert_eq!(size(&config("[]", "[-1, 16]")), Ok(json!(0)));
        assert_eq!(
            size(&config("[16]", "[-1, 16]")).unwrap_err(),
            "unable to autofill for 'm', model tensor configurations are contradicting each other \
             in terms of whether batching is supported"
        );
        let ragged = r#"{"input": [{"name": "A", "dims": [-1], "allow_ragged_batch": true}]}"#;
        assert_eq!(size(ragged), Ok(json!(4)));
        let reshaped = r#"{"input": [{"name": "A", "dims": [4, 4], "reshape": {"shape": [16]}}]}"#;
        assert_eq!(size(reshaped), Ok(json!(4)));
    }

    #[test]
    fn shapes_that_nobody_tells() {
        assert_eq!(
            completed("{}", None, A, 4).unwrap_err(),
            "Unable to autofill for 'm': the rank of model tensor 'A' is 0 and dimensions are not \
             defined"
        );
        assert_eq!(
            completed("{}", A, Some(&[]), 4).unwrap_err(),
            "Unable to autofill for 'm': the rank of model tensor 'B' is 0 which is not supported"
        );
        let told =
            r#"{"input": [{"name": "A", "dims": [5]}], "output": [{"name": "B", "dims": [5]}]}"#;
        let value = completed(told, None, None, 4).unwrap();
        assert_eq!(
            value["input"][0],
            json!({"name": "A", "dims": [5], "data_type": "TYPE_FP32"})
        );
    }

    #[test]
    fn inputs_that_the_server_makes_are_left_out() {
        for config in [
            r#"{"batch_input": [{"target_name": ["A"]}]}"#,
            r#"{"sequence_batching": {"control_input": [{"name": "A"}]}}"#,
            r#"{"sequence_batching": {"state": [{"input_name": "A"}]}}"#,
        ] {
            assert_eq!(
                completed(config, A, A, 4).unwrap()["input"],
                json!([]),
                "{config}"
            );
        }
    }
}
