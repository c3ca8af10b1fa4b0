//! Checks a configuration against the model that it describes, where upstream's TensorFlow backend
//! does so otherwise than those of other engines; the rest is the frame's.

use conch_backend_sdk as sdk;
use sdk::engine::Signature;
use sdk::{Error, ModelConfig, TensorConfig, shape_text};

use crate::files::is_among;
use crate::signature::ModelTensors;

/// Checks the configuration of a SavedModel against its signature.
///
/// # Errors
/// `InvalidArgument` if they disagree; `Internal` if the model lacks a sequence control.
pub fn validate(
    model_name: &str,
    config: &ModelConfig,
    tensors: &ModelTensors,
    signature: &Signature,
) -> Result<(), Error> {
    check_controls(model_name, config, tensors)?;
    // By name before their number, so that an input that is too much is named.
    let inputs: Vec<_> = tensors.inputs.iter().map(|tensor| tensor.name()).collect();
    check_allowed("input", &config.inputs()?, &inputs, |name| {
        inputs.contains(&name)
    })?;
    sdk::engine::validate::validate(model_name, config, signature)
}

/// Checks the configuration of a GraphDef against the names of what can be fed and fetched, which
/// is all that such a file tells.
///
/// # Errors
/// `InvalidArgument` if it has something else; `Internal` if the model lacks a sequence control.
pub fn validate_names(
    model_name: &str,
    config: &ModelConfig,
    inputs: &[&str],
    outputs: &[&str],
) -> Result<(), Error> {
    let configured = config.inputs()?;
    if inputs.len() < configured.len() {
        return Err(Error::invalid(format!(
            "unable to load model '{model_name}', configuration expects {} inputs, model provides \
             at most {}",
            configured.len(),
            inputs.len()
        )));
    }
    for control in config.controls()? {
        if !is_among(&control.name, inputs) {
            return Err(no_control(&control.name));
        }
    }
    check_allowed("input", &configured, inputs, |name| is_among(name, inputs))?;
    check_allowed("output", &config.outputs()?, outputs, |name| {
        is_among(name, outputs)
    })
}

fn check_controls(
    model_name: &str,
    config: &ModelConfig,
    tensors: &ModelTensors,
) -> Result<(), Error> {
    for control in config.controls()? {
        let tensor = tensors
            .inputs
            .iter()
            .find(|tensor| tensor.name() == control.name)
            .ok_or_else(|| no_control(&control.name))?;
        let refuse = |what: String| {
            Error::invalid(format!(
                "unable to load model '{model_name}', sequence control '{}': {what}",
                control.name
            ))
        };
        // A control has one element, behind the batch dimension where there is one.
        let expected = if config.max_batch_size() > 0 {
            &[-1, 1][..]
        } else {
            &[1]
        };
        let dims = tensor.known_dims();
        if !dims.is_empty() && dims != expected {
            return Err(refuse(format!(
                "the model expects shape {} but a control has shape {}",
                shape_text(dims),
                shape_text(expected)
            )));
        }
        if tensor.data_type != control.data_type {
            return Err(refuse(format!(
                "the model expects TYPE_{} but the model configuration specifies data-type {}",
                tensor.data_type.name(),
                control.data_type.config_name()
            )));
        }
    }
    Ok(())
}

fn no_control(name: &str) -> Error {
    Error::internal(format!(
        "configuration specified sequence control '{name}', but model does not provide that input"
    ))
}

/// The allowed names are sorted, as upstream's are.
fn check_allowed(
    role: &str,
    configured: &[TensorConfig],
    allowed: &[&str],
    is_allowed: impl Fn(&str) -> bool,
) -> Result<(), Error> {
    match configured.iter().find(|tensor| !is_allowed(tensor.name())) {
        None => Ok(()),
        Some(tensor) => {
            let mut allowed = allowed.to_vec();
            allowed.sort_unstable();
            Err(Error::invalid(format!(
                "unexpected inference {role} '{}', allowed {role}s are: {}",
                tensor.name(),
                allowed.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::DataType;

    use super::*;
    use crate::signature::ModelTensor;

    const START: &str = r#", "sequence_batching": {"control_input": [{"name": "S", "control": [
        {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}]}"#;

    fn config(inputs: &[&str], more: &str) -> ModelConfig {
        let inputs: Vec<_> = inputs
            .iter()
            .map(|name| format!(r#"{{"name": "{name}", "data_type": "TYPE_FP32", "dims": [4]}}"#))
            .collect();
        let inputs = inputs.join(",");
        let json = format!(
            r#"{{"max_batch_size": 8, "input": [{inputs}],
                 "output": [{{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}}]{more}}}"#
        );
        ModelConfig::parse(json.as_bytes()).unwrap()
    }

    fn tensor(name: &str, data_type: DataType, dims: &[i64]) -> ModelTensor {
        ModelTensor {
            name: std::ffi::CString::new(name).unwrap(),
            operation: std::ffi::CString::new(name).unwrap(),
            index: 0,
            data_type,
            dims: Some(dims.to_vec()),
        }
    }

    fn check(config: &ModelConfig, control: Option<(DataType, &[i64])>) -> String {
        let mut inputs = vec![tensor("A", DataType::Fp32, &[-1, 4])];
        inputs.extend(control.map(|(data_type, dims)| tensor("S", data_type, dims)));
        let tensors = ModelTensors {
            signature_name: String::new(),
            inputs,
            outputs: vec![tensor("Y", DataType::Fp32, &[-1, 4])],
        };
        let signature = tensors.signature(config).unwrap();
        match validate("m", config, &tensors, &signature) {
            Ok(()) => String::new(),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn saved_models() {
        let control = (DataType::Int32, &[-1, 1][..]);
        assert_eq!(check(&config(&["A"], ""), None), "");
        assert_eq!(check(&config(&["A"], START), Some(control)), "");
        for (config, control, expected) in [
            (
                config(&["A", "B"], ""),
                None,
                "unexpected inference input 'B', allowed inputs are: A",
            ),
            (
                config(&["A"], ""),
                Some(control),
                "unable to load model 'm', configuration expects 1 inputs, model provides 2",
            ),
            (
                config(&["A"], START),
                None,
                "configuration specified sequence control 'S', but model does not provide that \
                 input",
            ),
            (
                config(&["A"], START),
                Some((DataType::Int32, &[-1, 2])),
                "unable to load model 'm', sequence control 'S': the model expects shape [-1,2] \
                 but a control has shape [-1,1]",
            ),
            (
                config(&["A"], START),
                Some((DataType::Fp32, &[-1, 1])),
                "unable to load model 'm', sequence control 'S': the model expects TYPE_FP32 but \
                 the model configuration specifies data-type TYPE_INT32",
            ),
        ] {
            assert_eq!(check(&config, control), expected);
        }
    }

    #[test]
    fn graph_definitions() {
        let check = |config: &ModelConfig, inputs: &[&str], outputs: &[&str]| match validate_names(
            "m", config, inputs, outputs,
        ) {
            Ok(()) => String::new(),
            Err(error) => error.message().to_owned(),
        };
        assert_eq!(
            check(&config(&["A", "B:0"], ""), &["A", "B"], &["Y", "Z"]),
            ""
        );
        assert_eq!(
            check(&config(&["A", "B"], ""), &["A"], &["Y"]),
            "unable to load model 'm', configuration expects 2 inputs, model provides at most 1"
        );
        assert_eq!(
            check(&config(&["C"], ""), &["B", "A"], &["Y"]),
            "unexpected inference input 'C', allowed inputs are: A, B"
        );
        assert_eq!(
            check(&config(&["A"], ""), &["A"], &["Z", "X"]),
            "unexpected inference output 'Y', allowed outputs are: X, Z"
        );
        assert_eq!(
            check(&config(&["A"], START), &["A"], &["Y"]),
            "configuration specified sequence control 'S', but model does not provide that input"
        );
    }
}
