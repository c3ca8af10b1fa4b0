//! Which tensor of a configuration is which argument and which result of a model.

use std::ffi::CString;

use conch_backend_sdk as sdk;
use sdk::engine::{Signature, TensorInfo};
use sdk::{DataType, Error, ModelConfig};

use crate::tensors::SCALAR_TYPES;

/// A configuration brought together with a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// What the configuration says: torch's models declare neither types nor shapes.
    pub signature: Signature,
    /// Of each input of the signature: which argument it is.
    pub inputs: Vec<usize>,
    /// Of each output of the signature: which result it is.
    pub outputs: Vec<usize>,
}

/// The tensors of a configuration as a signature: inputs, those that describe the batch, sequence
/// controls and states, in this order; outputs and states.
///
/// # Errors
/// What the configuration has wrong.
pub fn signature_of(config: &ModelConfig) -> Result<Signature, Error> {
    let batch_dim = (config.max_batch_size() > 0).then_some(-1);
    let info = |name: &CString, data_type, dims: &[i64]| TensorInfo {
        name: name.clone(),
        data_type,
        dims: batch_dim.into_iter().chain(dims.iter().copied()).collect(),
    };
    let mut signature = Signature::default();
    let mut inputs: Vec<TensorInfo> = Vec::new();
    for input in config.inputs()? {
        inputs.push(info(&input.name, input.data_type, input.model_dims()));
    }
    for batch_input in config.batch_inputs()? {
        for target in &batch_input.targets {
            inputs.push(info(target, batch_input.data_type, &[-1]));
        }
    }
    for control in config.controls()? {
        let name = CString::new(control.name)
            .map_err(|_| Error::invalid("a sequence control's name with a NUL in it"))?;
        inputs.push(info(&name, control.data_type, &[1]));
    }
    let mut outputs: Vec<TensorInfo> = Vec::new();
    for output in config.outputs()? {
        outputs.push(info(&output.name, output.data_type, output.model_dims()));
    }
    for state in config.states()? {
        inputs.push(info(&state.input, state.data_type, &state.dims));
        outputs.push(info(&state.output, state.data_type, &state.dims));
    }
    // A control may have several kinds, and an output may be a state too.
    for (from, to) in [
        (inputs, &mut signature.inputs),
        (outputs, &mut signature.outputs),
    ] {
        for info in from {
            if !to.iter().any(|known| known.name == info.name) {
                to.push(info);
            }
        }
    }
    Ok(signature)
}

/// Checks what the tensors of a configuration are.
///
/// # Errors
/// Upstream's, if torch has no such type, or a list of strings has more than one dimension.
pub fn check_types(
    model_name: &str,
    signature: &Signature,
    takes_strings: bool,
) -> Result<(), Error> {
    let sides = [("input", &signature.inputs), ("output", &signature.outputs)];
    for (side, infos) in sides {
        for info in infos {
            let name = info.name();
            if info.data_type != DataType::Bytes {
                if SCALAR_TYPES.number(info.data_type).is_none() {
                    return Err(unsupported(model_name, side, info));
                }
            } else if !takes_strings {
                return Err(unsupported(model_name, side, info));
            } else if info.dims.len() > 1 {
                return Err(Error::internal(format!(
                    "Triton only supports 1 dimensional List of String as {side} for '{name}' for \
                     model '{model_name}'"
                )));
            }
        }
    }
    Ok(())
}

fn unsupported(model_name: &str, side: &str, info: &TensorInfo) -> Error {
    Error::internal(format!(
        "unsupported datatype {} for {side} '{}' for model '{model_name}'",
        info.data_type.config_name(),
        info.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_tensors_of_a_configuration() {
        let config = ModelConfig::parse(
            br#"{"max_batch_size": 8,
                "input": [{"name": "A__0", "data_type": "TYPE_FP32", "dims": [2],
                           "reshape": {"shape": []}}],
                "batch_input": [{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["B__1"],
                                 "data_type": "TYPE_FP32", "source_input": ["A__0"]}],
                "output": [{"name": "O__0", "data_type": "TYPE_INT32", "dims": [4]},
                           {"name": "S__1", "data_type": "TYPE_FP32", "dims": [3]}],
                "sequence_batching": {
                    "control_input": [{"name": "C__2", "control": [
                        {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]}],
                    "state": [{"input_name": "S__3", "output_name": "S__1",
                               "data_type": "TYPE_FP32", "dims": [3]}]}}"#,
        )
        .unwrap();
        let signature = signature_of(&config).unwrap();
        let shown = |infos: &[TensorInfo]| -> Vec<(String, Vec<i64>)> {
            infos
                .iter()
                .map(|info| (info.name().to_owned(), info.dims.clone()))
                .collect()
        };
        let pair = |name: &str, dims: &[i64]| (name.to_owned(), dims.to_vec());
        assert_eq!(
            shown(&signature.inputs),
            [
                pair("A__0", &[-1]),
                pair("B__1", &[-1, -1]),
                pair("C__2", &[-1, 1]),
                pair("S__3", &[-1, 3]),
            ]
        );
        assert_eq!(
            shown(&signature.outputs),
            [pair("O__0", &[-1, 4]), pair("S__1", &[-1, 3])]
        );
    }

    #[test]
    fn refuses_what_torch_has_not() {
        let signature = |data_type, dims: &[i64]| Signature {
            inputs: vec![TensorInfo {
                name: c"X".to_owned(),
                data_type,
                dims: dims.to_vec(),
            }],
            ..Signature::default()
        };
        for (data_type, dims, takes_strings, expected) in [
            (DataType::Fp32, &[-1, 2][..], true, None),
            (DataType::Bytes, &[-1], true, None),
            (
                DataType::Bytes,
                &[-1, 1],
                true,
                Some(
                    "Triton only supports 1 dimensional List of String as input for 'X' for model \
                     'm'",
                ),
            ),
            (
                DataType::Bytes,
                &[-1],
                false,
                Some("unsupported datatype TYPE_STRING for input 'X' for model 'm'"),
            ),
            (
                DataType::Uint32,
                &[-1],
                true,
                Some("unsupported datatype TYPE_UINT32 for input 'X' for model 'm'"),
            ),
        ] {
            let got = check_types("m", &signature(data_type, dims), takes_strings);
            assert_eq!(got.err().as_ref().map(Error::message), expected);
        }
    }
}
