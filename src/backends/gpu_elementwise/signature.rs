//! Inputs and output of a model: what its configuration leaves out is completed, what does not suit
//! the operation is refused.

use std::ffi::CString;

use conch_backend_sdk as sdk;
use sdk::serde_json::{Value, json};
use sdk::{DataType, Error, ModelConfig, TensorConfig, shape_text};

use crate::formula::Formula;
use crate::operation::{Operation, Order};

/// What a model serves.
#[derive(Clone, Debug)]
pub struct Signature {
    pub model_name: String,
    pub formula: Formula,
    pub inputs: Vec<CString>,
    pub output: CString,
    pub is_batching: bool,
}

impl Signature {
    /// # Errors
    /// `InvalidArgument` if configuration and operation disagree; the message names the model, the
    /// tensor, and what was expected and got.
    pub fn read(
        model_name: &str,
        config: &ModelConfig,
        operation: Operation,
    ) -> Result<Signature, Error> {
        let name = operation.name();
        let refuse = |message: String| {
            Error::invalid(format!("unable to load model '{model_name}', {message}"))
        };
        let (inputs, outputs) = (config.inputs()?, config.outputs()?);
        for (role, found, expected) in [
            ("inputs", inputs.len(), operation.input_count()),
            ("outputs", outputs.len(), 1),
        ] {
            if found != expected {
                return Err(refuse(format!(
                    "operation '{name}': expected {expected} {role}, got {found}"
                )));
            }
        }
        let (Some(first), Some(output)) = (inputs.first(), outputs.first()) else {
            return Err(refuse(format!("operation '{name}': no tensors")));
        };
        let formula = Formula::new(operation, first.data_type, output.data_type);
        let formula = formula.map_err(|(is_output, message)| match is_output {
            true => refuse(format!("output '{}': {message}", output.name())),
            false => refuse(format!("input '{}': {message}", first.name())),
        })?;
        let is_batching = config.max_batch_size() > 0;
        for other in inputs.iter().skip(1) {
            if other.data_type != first.data_type {
                return Err(refuse(format!(
                    "input '{}': expected {}, got {}",
                    other.name(),
                    first.data_type.config_name(),
                    other.data_type.config_name()
                )));
            }
            check_dims(other, "input", first.model_dims()).map_err(refuse)?;
        }
        let dims = output_dims(&formula.operation, first.model_dims(), is_batching);
        let dims =
            dims.map_err(|message| refuse(format!("input '{}': {message}", first.name())))?;
        check_dims(output, "output", &dims).map_err(refuse)?;
        Ok(Signature {
            model_name: model_name.to_owned(),
            formula,
            inputs: inputs.iter().map(|input| input.name.clone()).collect(),
            output: output.name.clone(),
            is_batching,
        })
    }
}

/// Refuses dimensions that can never be these; -1 is any.
fn check_dims(tensor: &TensorConfig, role: &str, expected: &[i64]) -> Result<(), String> {
    let found = tensor.model_dims();
    let mut pairs = found.iter().zip(expected);
    let fits = found.len() == expected.len()
        && pairs.all(|(one, other)| one == other || *one == -1 || *other == -1);
    match fits {
        true => Ok(()),
        false => Err(format!(
            "{role} '{}': expected dims {}, got {}",
            tensor.name(),
            shape_text(expected),
            shape_text(found)
        )),
    }
}

/// The dimensions of the output, without the batch; -1 is any.
fn output_dims(operation: &Operation, dims: &[i64], is_batching: bool) -> Result<Vec<i64>, String> {
    let wrong = |expected: String| format!("expected {expected}, got {}", shape_text(dims));
    let (order, wanted) = match operation {
        Operation::Affine {
            channels,
            axis: Some(axis),
        } => {
            let count = channels.count() as i64;
            let fits = |dim: &i64| count == 1 || *dim == -1 || *dim == count;
            return match dims.get(*axis).is_some_and(fits) {
                true => Ok(dims.to_vec()),
                false => Err(wrong(format!("{count} channels in dimension {axis}"))),
            };
        }
        Operation::Layout(order) => (*order, 1),
        Operation::NormalizeImage { channels } => (Order::ChannelsFirst, channels.count() as i64),
        _ => return Ok(dims.to_vec()),
    };
    let lead = dims.len().checked_sub(3);
    let lead = lead.filter(|lead| *lead == 0 || (*lead == 1 && !is_batching));
    let lead = lead.ok_or_else(|| wrong("the three dimensions of an image".to_owned()))?;
    let (batch, image) = dims.split_at(lead);
    let turned = match (order, image) {
        (Order::ChannelsFirst, [height, width, channels]) => [*channels, *height, *width],
        (Order::ChannelsLast, [channels, height, width]) => [*height, *width, *channels],
        _ => return Err(wrong("the three dimensions of an image".to_owned())),
    };
    if wanted > 1 && ![-1, wanted].contains(&turned[0]) {
        return Err(wrong(format!("{wanted} channels in the last dimension")));
    }
    Ok([batch, &turned].concat())
}

/// The configuration with the inputs and the output that it leaves out; none if nothing is missing.
///
/// # Errors
/// `InvalidArgument` if a data type is needed that nothing tells.
pub fn complete(
    model_name: &str,
    config: &ModelConfig,
    operation: &Operation,
) -> Result<Option<ModelConfig>, Error> {
    let is_missing = |key: &str| {
        let list = config.json().get(key).and_then(Value::as_array);
        list.is_none_or(Vec::is_empty)
    };
    let (no_inputs, no_outputs) = (is_missing("input"), is_missing("output"));
    if !no_inputs && !no_outputs {
        return Ok(None);
    }
    let refuse = |message: String| {
        Error::invalid(format!(
            "autofill failed for model '{model_name}': {message}"
        ))
    };
    let mut config = config.clone();
    if no_inputs {
        let given = match no_outputs {
            true => None,
            false => config.outputs()?.into_iter().next(),
        };
        let (data_type, dims) = input_of(&config, operation, given.as_ref()).map_err(refuse)?;
        let row = |index: usize| {
            json!({"name": format!("INPUT{index}"), "data_type": data_type.config_name(),
                   "dims": dims})
        };
        let inputs: Vec<Value> = (0..operation.input_count()).map(row).collect();
        set(&mut config, "input", json!(inputs));
    }
    if no_outputs {
        let inputs = config.inputs()?;
        let Some(first) = inputs.first() else {
            return Err(refuse("no inputs".to_owned()));
        };
        let dims = output_dims(operation, first.model_dims(), config.max_batch_size() > 0);
        let dims =
            dims.map_err(|message| refuse(format!("input '{}': {message}", first.name())))?;
        let data_type = match (type_parameter(&config, "output_data_type"), operation) {
            (Err(message), _) => return Err(refuse(message)),
            (Ok(Some(data_type)), _) => data_type,
            (Ok(None), Operation::NormalizeImage { .. }) => DataType::Fp32,
            (Ok(None), Operation::Cast) => {
                return Err(refuse(
                    "expected an output or parameter 'output_data_type' for operation 'cast', \
                     got none"
                        .to_owned(),
                ));
            }
            (Ok(None), _) => first.data_type,
        };
        let output = json!([{"name": "OUTPUT0", "data_type": data_type.config_name(),
                             "dims": dims}]);
        set(&mut config, "output", output);
    }
    Ok(Some(config))
}

/// Type and dimensions of inputs that the configuration does not have.
fn input_of(
    config: &ModelConfig,
    operation: &Operation,
    output: Option<&TensorConfig>,
) -> Result<(DataType, Vec<i64>), String> {
    let given = type_parameter(config, "data_type")?;
    let (default, dims) = match (operation, output) {
        (Operation::NormalizeImage { channels }, _) => {
            let count = channels.count() as i64;
            let channels = if count > 1 { count } else { -1 };
            (DataType::Uint8, vec![-1, -1, channels])
        }
        (Operation::Layout(_), Some(output)) => (output.data_type, vec![-1; 3]),
        (Operation::Layout(_), None) => (DataType::Fp32, vec![-1; 3]),
        (Operation::Add | Operation::Multiply, Some(output)) => {
            (output.data_type, output.model_dims().to_vec())
        }
        (_, Some(output)) => (DataType::Fp32, output.model_dims().to_vec()),
        (Operation::Affine { channels, axis }, None) => {
            let rank = axis.map_or(1, |axis| axis + 1);
            let mut dims = vec![-1; rank.min(8)];
            if let (Some(dim), true) = (dims.last_mut(), channels.count() > 1) {
                *dim = channels.count() as i64;
            }
            (DataType::Fp32, dims)
        }
        (_, None) => (DataType::Fp32, vec![-1]),
    };
    Ok((given.unwrap_or(default), dims))
}

/// A data type, with or without `TYPE_`.
fn type_parameter(config: &ModelConfig, name: &str) -> Result<Option<DataType>, String> {
    let Some(text) = config.parameter(name) else {
        return Ok(None);
    };
    let plain = text.trim().trim_start_matches("TYPE_");
    let found = DataType::from_config_name(&format!("TYPE_{plain}"));
    match found {
        Some(found) => Ok(Some(found)),
        None => Err(format!(
            "expected a datatype for parameter '{name}', got '{text}'"
        )),
    }
}

fn set(config: &mut ModelConfig, key: &str, value: Value) {
    if let Some(object) = config.json_mut().as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> ModelConfig {
        ModelConfig::parse(text.as_bytes()).unwrap()
    }

    fn tensor(name: &str, data_type: &str, dims: &str) -> String {
        format!(r#"{{"name": "{name}", "data_type": "TYPE_{data_type}", "dims": {dims}}}"#)
    }

    fn parameters(rows: &[(&str, &str)]) -> String {
        let rows = rows.iter();
        let rows = rows.map(|(name, value)| format!(r#""{name}": {{"string_value": "{value}"}}"#));
        rows.collect::<Vec<_>>().join(",")
    }

    fn read(text: &str) -> Result<Signature, Error> {
        let config = config(text);
        Signature::read("m", &config, Operation::read(&config)?)
    }

    const THREE: (&str, &str) = ("scale", "1,2,3");
    const NORMALIZE: (&str, &str) = ("operation", "normalize_image");

    /// Parameters, rows of a batch, inputs, output, and the reason; none if they suit.
    type Refusal = (
        &'static [(&'static str, &'static str)],
        i64,
        &'static [[&'static str; 3]],
        [&'static str; 3],
        &'static str,
    );

    const REFUSALS: &[Refusal] = &[
        (
            &[("operation", "add")],
            0,
            &[["A", "FP32", "[2]"], ["B", "FP32", "[-1]"]],
            ["O", "FP32", "[-1]"],
            "",
        ),
        (
            &[("operation", "add")],
            0,
            &[["A", "FP32", "[2]"]],
            ["O", "FP32", "[2]"],
            "operation 'add': expected 2 inputs, got 1",
        ),
        (
            &[("operation", "add")],
            0,
            &[["A", "FP32", "[2]"], ["B", "FP16", "[2]"]],
            ["O", "FP32", "[2]"],
            "input 'B': expected TYPE_FP32, got TYPE_FP16",
        ),
        (
            &[("operation", "add")],
            0,
            &[["A", "FP32", "[2]"], ["B", "FP32", "[3]"]],
            ["O", "FP32", "[2]"],
            "input 'B': expected dims [2], got [3]",
        ),
        (
            &[("operation", "add")],
            0,
            &[["A", "FP32", "[2]"], ["B", "FP32", "[2]"]],
            ["O", "FP32", "[2,1]"],
            "output 'O': expected dims [2], got [2,1]",
        ),
        (
            &[("operation", "cast")],
            0,
            &[["A", "INT64", "[2]"]],
            ["O", "FP32", "[2]"],
            "input 'A': expected one of TYPE_FP32",
        ),
        (
            &[NORMALIZE, THREE],
            8,
            &[["A", "UINT8", "[-1,-1,3]"]],
            ["O", "FP16", "[3,-1,-1]"],
            "",
        ),
        (
            &[NORMALIZE, THREE],
            0,
            &[["A", "UINT8", "[2,-1,-1,3]"]],
            ["O", "FP16", "[2,3,-1,-1]"],
            "",
        ),
        (
            &[NORMALIZE, THREE],
            8,
            &[["A", "UINT8", "[2,-1,-1,3]"]],
            ["O", "FP16", "[3,-1,-1]"],
            "input 'A': expected the three dimensions of an image, got [2,-1,-1,3]",
        ),
        (
            &[NORMALIZE, THREE],
            8,
            &[["A", "UINT8", "[8,8,4]"]],
            ["O", "FP16", "[4,8,8]"],
            "input 'A': expected 3 channels in the last dimension, got [8,8,4]",
        ),
        (
            &[NORMALIZE, THREE],
            8,
            &[["A", "UINT8", "[8,8,3]"]],
            ["O", "FP16", "[8,8,3]"],
            "output 'O': expected dims [3,8,8], got [8,8,3]",
        ),
        (
            &[("operation", "affine"), THREE, ("channel_axis", "1")],
            8,
            &[["A", "INT8", "[3]"]],
            ["O", "FP32", "[3]"],
            "input 'A': expected 3 channels in dimension 1, got [3]",
        ),
        (
            &[("operation", "affine"), THREE, ("channel_axis", "0")],
            8,
            &[["A", "INT8", "[3]"]],
            ["O", "FP32", "[3]"],
            "",
        ),
    ];

    #[test]
    fn what_does_not_suit_is_refused_with_names() {
        for (rows, batch, inputs, output, expected) in REFUSALS {
            let rows = parameters(rows);
            let inputs = inputs
                .iter()
                .map(|[name, kind, dims]| tensor(name, kind, dims));
            let inputs = inputs.collect::<Vec<_>>().join(",");
            let [name, kind, dims] = output;
            let output = tensor(name, kind, dims);
            let text = format!(
                r#"{{"max_batch_size": {batch}, "parameters": {{{rows}}},
                     "input": [{inputs}], "output": [{output}]}}"#
            );
            match read(&text) {
                Ok(_) => assert_eq!(*expected, "", "{text}"),
                Err(error) => {
                    let message = error.message();
                    assert!(!expected.is_empty(), "{message}");
                    let begin = format!("unable to load model 'm', {expected}");
                    assert!(message.starts_with(&begin), "{message}");
                }
            }
        }
    }

    #[test]
    fn what_is_missing_is_completed() {
        let output = |kind, dims| format!(r#""output": [{}],"#, tensor("O", kind, dims));
        let input = |kind, dims| format!(r#""input": [{}],"#, tensor("I", kind, dims));
        for (rows, tensors, inputs, outputs) in [
            (
                &[("operation", "add")][..],
                String::new(),
                "INPUT0 FP32 [-1] INPUT1 FP32 [-1]",
                "OUTPUT0 FP32 [-1]",
            ),
            (
                &[("operation", "add"), ("data_type", "INT8")],
                String::new(),
                "INPUT0 INT8 [-1] INPUT1 INT8 [-1]",
                "OUTPUT0 INT8 [-1]",
            ),
            (
                &[("operation", "multiply")],
                output("FP16", "[4,2]"),
                "INPUT0 FP16 [4,2] INPUT1 FP16 [4,2]",
                "O FP16 [4,2]",
            ),
            (
                &[("operation", "cast"), ("output_data_type", "TYPE_BF16")],
                input("INT8", "[4]"),
                "I INT8 [4]",
                "OUTPUT0 BF16 [4]",
            ),
            (
                &[("operation", "layout"), ("layout", "nchw_to_nhwc")],
                input("INT64", "[3,-1,5]"),
                "I INT64 [3,-1,5]",
                "OUTPUT0 INT64 [-1,5,3]",
            ),
            (
                &[("operation", "normalize_image"), ("mean", "1,2,3")],
                String::new(),
                "INPUT0 UINT8 [-1,-1,3]",
                "OUTPUT0 FP32 [3,-1,-1]",
            ),
            (
                &[
                    ("operation", "affine"),
                    ("scale", "1,2"),
                    ("channel_axis", "1"),
                ],
                String::new(),
                "INPUT0 FP32 [-1,2]",
                "OUTPUT0 FP32 [-1,2]",
            ),
        ] {
            let text = format!(r#"{{{tensors} "parameters": {{{}}}}}"#, parameters(rows));
            let config = config(&text);
            let operation = Operation::read(&config).unwrap();
            let completed = complete("m", &config, &operation).unwrap().unwrap();
            let shown = |tensors: Vec<TensorConfig>| {
                let rows = tensors.iter().map(|tensor| {
                    let kind = tensor.data_type.name();
                    format!("{} {kind} {}", tensor.name(), shape_text(&tensor.dims))
                });
                rows.collect::<Vec<_>>().join(" ")
            };
            assert_eq!(shown(completed.inputs().unwrap()), inputs);
            assert_eq!(shown(completed.outputs().unwrap()), outputs);
            Signature::read("m", &completed, operation.clone()).unwrap();
            assert!(complete("m", &completed, &operation).unwrap().is_none());
        }
        let cast = config(&format!(
            r#"{{"parameters": {{{}}}}}"#,
            parameters(&[("operation", "cast")])
        ));
        let error = complete("m", &cast, &Operation::Cast).unwrap_err();
        assert!(error.message().contains("for operation 'cast', got none"));
    }
}
