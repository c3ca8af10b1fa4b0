//! Checks a configuration against the pipeline that it describes, in upstream's words.

use conch_backend_sdk as sdk;
use sdk::serde_json::Value;
use sdk::{Error, ModelConfig};

use crate::capi::Port;
use crate::signature::Signature;

/// What a configuration says of a type that it does not know.
const NO_TYPE: &str = "TYPE_INVALID";

/// # Errors
/// `InvalidArgument` if configuration and pipeline disagree.
pub fn validate(config: &ModelConfig, signature: &Signature) -> Result<(), Error> {
    let list = |key: &str, missing: &str| match config.json().get(key) {
        Some(Value::Array(values)) => Ok(values.as_slice()),
        _ => Err(Error::invalid(missing)),
    };
    let inputs = list("input", "Missing inputs config.")?;
    no_further_inputs(inputs, &signature.inputs)?;
    for port in &signature.inputs {
        let value = inputs
            .iter()
            .find(|value| name(value) == Some(port.name()))
            .ok_or_else(|| {
                Error::invalid(format!("Missing config for \"{}\" input.", port.name()))
            })?;
        check_tensor(value, port, signature.is_batching)?;
    }
    let outputs = list("output", "Missing outputs config.")?;
    if outputs.len() != signature.outputs.len() {
        return Err(output_counts(outputs.len(), signature.outputs.len()));
    }
    for (index, (value, port)) in outputs.iter().zip(&signature.outputs).enumerate() {
        let Some(name) = name(value) else {
            return Err(nameless("output", index));
        };
        // The configuration's name is the one to tell.
        let port = Port {
            name: std::ffi::CString::new(name).unwrap_or_default(),
            ..port.clone()
        };
        check_tensor(value, &port, signature.is_batching)?;
    }
    Ok(())
}

fn check_tensor(value: &Value, port: &Port, is_batching: bool) -> Result<(), Error> {
    if data_type(value, port)? == NO_TYPE || configured_type(value).is_none() {
        return Err(Error::invalid(format!(
            "Missing data_type config for \"{}\"",
            port.name()
        )));
    }
    if configured_dims(value).is_none() {
        return Err(Error::invalid(format!(
            "Missing dims config for \"{}\"",
            port.name()
        )));
    }
    dims(value, port, is_batching).map(|_| ())
}

/// The type of a tensor, of the configuration or else the pipeline.
///
/// # Errors
/// `InvalidArgument` if they disagree.
pub fn data_type(value: &Value, port: &Port) -> Result<String, Error> {
    let declared = port.data_type.map(sdk::DataType::config_name);
    match (configured_type(value), declared) {
        (Some(configured), Some(declared)) if configured != declared => {
            Err(Error::invalid(format!(
                "Mismatch of data_type config for \"{}\".\nData type defined in config: \
                 {configured}\nData type defined in pipeline: {declared}",
                port.name()
            )))
        }
        (Some(known), _) | (None, Some(known)) => Ok(known.to_owned()),
        (None, None) => Ok(NO_TYPE.to_owned()),
    }
}

/// What `dims` is to be: what the configuration says, or as many open dimensions as the pipeline
/// declares; `None` if neither says anything.
///
/// # Errors
/// `InvalidArgument` if they disagree in number.
pub fn dims(value: &Value, port: &Port, is_batching: bool) -> Result<Option<Value>, Error> {
    let configured = configured_dims(value);
    // Without batches the configuration also has the dimension that goes over samples.
    let declared = port
        .dim_count
        .map(|count| count + usize::from(!is_batching));
    match (configured, declared) {
        (Some(configured), Some(declared)) if configured.len() != declared => {
            Err(Error::invalid(format!(
                "Mismatch in number of dimensions for \"{}\"\nNumber of dimensions defined in \
                 config: {}\nNumber of dimensions defined in pipeline: {declared}",
                port.name(),
                configured.len()
            )))
        }
        (Some(configured), _) => Ok(Some(Value::Array(configured.to_vec()))),
        (None, Some(declared)) => Ok(Some(vec![-1; declared].into())),
        (None, None) => Ok(None),
    }
}

/// # Errors
/// `InvalidArgument` if an input is configured that the pipeline does not have.
pub fn no_further_inputs(configured: &[Value], ports: &[Port]) -> Result<(), Error> {
    for (index, value) in configured.iter().enumerate() {
        let Some(name) = name(value) else {
            return Err(nameless("input", index));
        };
        if !ports.iter().any(|port| port.name() == name) {
            return Err(Error::invalid(format!(
                "Configuration file contains config for {name} but such input is not present in \
                 the pipeline."
            )));
        }
    }
    Ok(())
}

pub fn output_counts(configured: usize, declared: usize) -> Error {
    Error::invalid(format!(
        "The number of outputs specified in the DALI pipeline and the configuration file do not \
         match.\nModel config outputs: {configured}\nPipeline outputs: {declared}"
    ))
}

fn nameless(role: &str, index: usize) -> Error {
    Error::invalid(format!(
        "The {role} at index {index} in the model configuration does not contain a `name` field."
    ))
}

pub fn name(value: &Value) -> Option<&str> {
    let name = value.get("name")?.as_str()?;
    (!name.is_empty()).then_some(name)
}

/// A number of the configuration, which protocol buffers may write as text.
pub fn integer(value: &Value) -> Option<i64> {
    value
        .as_i64()
        .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
}

fn configured_type(value: &Value) -> Option<&str> {
    let name = value.get("data_type")?.as_str()?;
    (name != NO_TYPE).then_some(name)
}

fn configured_dims(value: &Value) -> Option<&[Value]> {
    let dims = value.get("dims")?.as_array()?;
    (!dims.is_empty()).then_some(dims)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use sdk::DataType;

    use super::*;

    fn validated(config: &str) -> Result<(), String> {
        let port = |name: &str, dim_count| Port {
            name: CString::new(name).unwrap(),
            is_on_gpu: false,
            data_type: Some(DataType::Uint8),
            dim_count,
            layout: None,
        };
        let signature = Signature {
            inputs: vec![port("A", Some(1))],
            outputs: vec![port("Y", None)],
            batch_size: 8,
            is_batching: true,
        };
        let config = ModelConfig::parse(config.as_bytes()).unwrap();
        validate(&config, &signature).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn compares_with_the_pipeline() {
        let a = r#"{"name": "A", "data_type": "TYPE_UINT8", "dims": [-1]}"#;
        let y = r#"{"name": "ANY", "data_type": "TYPE_UINT8", "dims": [2, 2]}"#;
        for (inputs, outputs, expected) in [
            (a, y, Ok(())),
            ("", y, Err("Missing config for \"A\" input.")),
            (
                a,
                "",
                Err(
                    "The number of outputs specified in the DALI pipeline and the configuration \
                     file do not match.\nModel config outputs: 0\nPipeline outputs: 1",
                ),
            ),
            (
                r#"{"name": "A", "dims": [-1]}"#,
                y,
                Err("Missing data_type config for \"A\""),
            ),
            (
                r#"{"name": "A", "data_type": "TYPE_UINT8"}"#,
                y,
                Err("Missing dims config for \"A\""),
            ),
            (
                a,
                r#"{"name": "ANY", "data_type": "TYPE_FP32", "dims": [2]}"#,
                Err(
                    "Mismatch of data_type config for \"ANY\".\nData type defined in config: \
                     TYPE_FP32\nData type defined in pipeline: TYPE_UINT8",
                ),
            ),
            (
                a,
                r#"{"data_type": "TYPE_UINT8"}"#,
                Err(
                    "The output at index 0 in the model configuration does not contain a `name` \
                     field.",
                ),
            ),
        ] {
            let config = format!(r#"{{"input": [{inputs}], "output": [{outputs}]}}"#);
            let expected = expected.map_err(str::to_owned);
            assert_eq!(validated(&config), expected, "{config}");
        }
        assert_eq!(validated("{}"), Err("Missing inputs config.".to_owned()));
    }
}
