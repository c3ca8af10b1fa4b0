//! Fills in what a configuration leaves out, from what the pipeline declares, by upstream's rules.

use conch_backend_sdk as sdk;
use sdk::serde_json::{Map, Value, json};
use sdk::{Error, ModelConfig};

use crate::capi::Port;
use crate::signature::Signature;
use crate::validate;

/// # Errors
/// `InvalidArgument` if what is there disagrees with the pipeline.
pub fn complete(config: &ModelConfig, signature: &Signature) -> Result<ModelConfig, Error> {
    let mut config = config.clone();
    let Some(object) = config.json_mut().as_object_mut() else {
        return Err(Error::internal("the configuration is no object"));
    };
    let inputs = complete_inputs(take(object, "input"), signature)?;
    object.insert("input".to_owned(), Value::Array(inputs));
    let outputs = complete_outputs(take(object, "output"), signature)?;
    object.insert("output".to_owned(), Value::Array(outputs));

    let size = object.get("max_batch_size").and_then(validate::integer);
    if signature.is_batching && size.is_none_or(|size| size <= 0) {
        object.insert("max_batch_size".to_owned(), json!(signature.batch_size));
    }
    let has_scheduler = ["dynamic_batching", "sequence_batching"]
        .iter()
        .any(|key| object.get(*key).is_some_and(|value| !value.is_null()));
    if signature.is_batching && !has_scheduler {
        object.insert("dynamic_batching".to_owned(), json!({}));
    }
    Ok(config)
}

fn take(object: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match object.remove(key) {
        Some(Value::Array(values)) => values,
        _ => Vec::new(),
    }
}

fn complete_inputs(mut configured: Vec<Value>, signature: &Signature) -> Result<Vec<Value>, Error> {
    validate::no_further_inputs(&configured, &signature.inputs)?;
    for port in &signature.inputs {
        let found = configured
            .iter_mut()
            .find(|value| validate::name(value) == Some(port.name()));
        match found {
            Some(value) => complete_tensor(value, port, signature.is_batching)?,
            None => {
                let mut value = json!({});
                complete_tensor(&mut value, port, signature.is_batching)?;
                configured.push(value);
            }
        }
    }
    for value in &mut configured {
        if let Some(object) = value.as_object_mut() {
            // Samples of a pipeline may differ in shape, so requests may too.
            object
                .entry("allow_ragged_batch")
                .or_insert(Value::Bool(true));
        }
    }
    Ok(configured)
}

fn complete_outputs(
    mut configured: Vec<Value>,
    signature: &Signature,
) -> Result<Vec<Value>, Error> {
    let count = signature.outputs.len();
    if configured.len() > count {
        return Err(validate::output_counts(configured.len(), count));
    }
    configured.resize(count, json!({}));
    for (value, port) in configured.iter_mut().zip(&signature.outputs) {
        complete_tensor(value, port, signature.is_batching)?;
    }
    Ok(configured)
}

fn complete_tensor(value: &mut Value, port: &Port, is_batching: bool) -> Result<(), Error> {
    let data_type = validate::data_type(value, port)?;
    let dims = validate::dims(value, port, is_batching)?;
    let Some(object) = value.as_object_mut() else {
        return Err(Error::invalid(format!(
            "the configuration of '{}' is no object",
            port.name()
        )));
    };
    let has_name = object
        .get("name")
        .and_then(Value::as_str)
        .is_some_and(|name| !name.is_empty());
    if !has_name {
        object.insert("name".to_owned(), json!(port.name()));
    }
    object.insert("data_type".to_owned(), json!(data_type));
    if let Some(dims) = dims {
        object.insert("dims".to_owned(), json!(dims));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use sdk::DataType;

    use super::*;

    fn port(name: &str, data_type: Option<DataType>, dim_count: Option<usize>) -> Port {
        Port {
            name: CString::new(name).unwrap(),
            is_on_gpu: false,
            data_type,
            dim_count,
            layout: None,
        }
    }

    fn completed(config: &str, is_batching: bool) -> Result<Value, String> {
        let signature = Signature {
            inputs: vec![
                port("A", Some(DataType::Uint8), Some(1)),
                port("B", None, None),
            ],
            outputs: vec![port("Y", Some(DataType::Fp32), Some(3))],
            batch_size: 256,
            is_batching,
        };
        let config = ModelConfig::parse(config.as_bytes()).unwrap();
        match complete(&config, &signature) {
            Ok(config) => Ok(config.json().clone()),
            Err(error) => Err(error.message().to_owned()),
        }
    }

    #[test]
    fn completes_everything() {
        let b = json!({"name": "B", "data_type": "TYPE_INVALID", "allow_ragged_batch": true});
        assert_eq!(
            completed("{}", true).unwrap(),
            json!({
                "max_batch_size": 256,
                "dynamic_batching": {},
                "input": [
                    {"name": "A", "data_type": "TYPE_UINT8", "dims": [-1],
                     "allow_ragged_batch": true},
                    b,
                ],
                "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1, -1, -1]}],
            })
        );
        // Without batches the first dimension is written.
        let value = completed(r#"{"max_batch_size": 0}"#, false).unwrap();
        assert_eq!(value["max_batch_size"], 0);
        assert!(value.get("dynamic_batching").is_none());
        assert_eq!(value["input"][0]["dims"], json!([-1, -1]));
        assert_eq!(value["output"][0]["dims"], json!([-1, -1, -1, -1]));
    }

    #[test]
    fn keeps_what_is_there() {
        let config = r#"{
            "max_batch_size": 32, "dynamic_batching": {"max_queue_delay_microseconds": 5},
            "input": [{"name": "B", "data_type": "TYPE_FP16", "dims": ["2", -1],
                       "allow_ragged_batch": false}],
            "output": [{"name": "OTHER", "dims": [3, 224, 224]}]
        }"#;
        let value = completed(config, true).unwrap();
        assert_eq!(value["max_batch_size"], 32);
        assert_eq!(value["dynamic_batching"]["max_queue_delay_microseconds"], 5);
        let names = [&value["input"][0]["name"], &value["input"][1]["name"]];
        assert_eq!(names, ["B", "A"]);
        assert_eq!(value["input"][0]["dims"], json!(["2", -1]));
        assert_eq!(value["input"][0]["allow_ragged_batch"], false);
        assert_eq!(
            value["output"],
            json!([{"name": "OTHER", "data_type": "TYPE_FP32", "dims": [3, 224, 224]}])
        );
    }

    #[test]
    fn refuses_what_disagrees() {
        for (config, expected) in [
            (
                r#"{"input": [{"name": "C"}]}"#,
                "Configuration file contains config for C but such input is not present in the \
                 pipeline.",
            ),
            (
                r#"{"input": [{}]}"#,
                "The input at index 0 in the model configuration does not contain a `name` field.",
            ),
            (
                r#"{"input": [{"name": "A", "data_type": "TYPE_FP32"}]}"#,
                "Mismatch of data_type config for \"A\".\nData type defined in config: \
                 TYPE_FP32\nData type defined in pipeline: TYPE_UINT8",
            ),
            (
                r#"{"output": [{"name": "Y", "dims": [1]}]}"#,
                "Mismatch in number of dimensions for \"Y\"\nNumber of dimensions defined in \
                 config: 1\nNumber of dimensions defined in pipeline: 3",
            ),
            (
                r#"{"output": [{}, {}]}"#,
                "The number of outputs specified in the DALI pipeline and the configuration file \
                 do not match.\nModel config outputs: 2\nPipeline outputs: 1",
            ),
        ] {
            assert_eq!(completed(config, true).unwrap_err(), expected, "{config}");
        }
    }
}
