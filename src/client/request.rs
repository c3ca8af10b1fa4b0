//! A request as it is on the wire.

use conch_config::DataType;
use serde_json::{Map, Value, json};

use crate::input::NamedTensor;
use crate::model::TensorDescription;
use crate::options::InferOptions;
use crate::show;
use crate::tensor::elements::Elements;

/// The body of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestBody {
    /// Length of the JSON in front of binary tensors, if there are any.
    pub(crate) json_bytes: Option<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// What is asked for beside tensors.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestExtras {
    pub(crate) id: Option<String>,
    pub(crate) parameters: Vec<(String, Value)>,
    pub(crate) outputs: Vec<String>,
    pub(crate) classes: Option<u32>,
    pub(crate) has_json_inputs: bool,
    pub(crate) has_json_outputs: bool,
}

impl RequestExtras {
    pub(crate) fn new(options: &InferOptions, outputs: &[TensorDescription]) -> RequestExtras {
        // Classes are asked for by output.
        let names = match (options.outputs.is_empty(), options.classes) {
            (true, Some(_)) => outputs.iter().map(|output| output.name.clone()).collect(),
            _ => options.outputs.clone(),
        };
        RequestExtras {
            id: options.id.clone(),
            parameters: options.parameters.clone(),
            outputs: names,
            classes: options.classes,
            has_json_inputs: options.has_json_tensors,
            has_json_outputs: options.has_json_tensors || options.prints_json,
        }
    }
}

impl RequestBody {
    /// # Errors
    /// A tensor that JSON cannot hold.
    pub(crate) fn new(
        tensors: &[NamedTensor],
        extras: &RequestExtras,
    ) -> Result<RequestBody, String> {
        let mut document = Map::new();
        if let Some(id) = &extras.id {
            document.insert(String::from("id"), json!(id));
        }
        let mut parameters: Map<String, Value> = extras.parameters.iter().cloned().collect();
        let is_binary = !extras.has_json_outputs;
        if is_binary && extras.outputs.is_empty() {
            parameters.insert(String::from("binary_data_output"), json!(true));
        }
        if !parameters.is_empty() {
            document.insert(String::from("parameters"), Value::Object(parameters));
        }
        let mut inputs = Vec::with_capacity(tensors.len());
        for NamedTensor { name, tensor } in tensors {
            let mut input = json!({
                "name": name, "datatype": tensor.data_type.name(), "shape": tensor.shape
            });
            match extras.has_json_inputs {
                true => input["data"] = json_data(tensor.data_type, &tensor.bytes)?,
                false => input["parameters"] = json!({"binary_data_size": tensor.bytes.len()}),
            }
            inputs.push(input);
        }
        document.insert(String::from("inputs"), Value::Array(inputs));
        if !extras.outputs.is_empty() {
            let output = |name: &String| {
                let mut parameters = Map::new();
                parameters.insert(String::from("binary_data"), json!(is_binary));
                if let Some(classes) = extras.classes {
                    parameters.insert(String::from("classification"), json!(classes));
                }
                json!({"name": name, "parameters": parameters})
            };
            let outputs = extras.outputs.iter().map(output).collect();
            document.insert(String::from("outputs"), Value::Array(outputs));
        }
        let mut bytes = Value::Object(document).to_string().into_bytes();
        let json_bytes = bytes.len();
        if extras.has_json_inputs {
            return Ok(RequestBody {
                json_bytes: None,
                bytes,
            });
        }
        for NamedTensor { tensor, .. } in tensors {
            bytes.extend_from_slice(&tensor.bytes);
        }
        Ok(RequestBody {
            json_bytes: Some(json_bytes),
            bytes,
        })
    }
}

fn json_data(data_type: DataType, bytes: &[u8]) -> Result<Value, String> {
    if matches!(data_type, DataType::Fp16 | DataType::Bf16) {
        return Err(format!(
            "the protocol has no {} in JSON, only in binary",
            data_type.name()
        ));
    }
    Elements::new(data_type, bytes).map(show::json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::literal;

    fn tensor(text: &str, data_type: DataType) -> NamedTensor {
        NamedTensor {
            name: String::from("X"),
            tensor: literal::parse(text, data_type).unwrap(),
        }
    }

    #[test]
    fn requests_in_binary_and_in_json() {
        let bytes = [tensor("[1,2]", DataType::Uint8)];
        let plain = RequestBody::new(&bytes, &RequestExtras::default()).unwrap();
        let (json, tail) = plain.bytes.split_at(plain.json_bytes.unwrap());
        let document: Value = serde_json::from_slice(json).unwrap();
        assert_eq!(tail, [1, 2]);
        assert_eq!(
            document,
            json!({"parameters": {"binary_data_output": true}, "inputs": [
                {"name": "X", "datatype": "UINT8", "shape": [2],
                 "parameters": {"binary_data_size": 2}}]})
        );
        let extras = RequestExtras {
            id: Some(String::from("7")),
            parameters: vec![(String::from("p"), json!(1))],
            outputs: vec![String::from("Y")],
            classes: Some(3),
            has_json_inputs: true,
            has_json_outputs: true,
        };
        let full = RequestBody::new(&[tensor("[\"a\"]", DataType::Bytes)], &extras).unwrap();
        assert_eq!(full.json_bytes, None);
        let document: Value = serde_json::from_slice(&full.bytes).unwrap();
        assert_eq!(
            document,
            json!({"id": "7", "parameters": {"p": 1}, "inputs": [
                {"name": "X", "datatype": "BYTES", "shape": [1], "data": ["a"]}],
                "outputs": [{"name": "Y",
                 "parameters": {"binary_data": false, "classification": 3}}]})
        );
        assert!(RequestBody::new(&[tensor("1", DataType::Fp16)], &extras).is_err());
        let unwritable = NamedTensor {
            name: String::new(),
            tensor: literal::parse("\"NaN\"", DataType::Fp32).unwrap(),
        };
        assert!(RequestBody::new(&[unwritable], &extras).is_err());
    }
}
