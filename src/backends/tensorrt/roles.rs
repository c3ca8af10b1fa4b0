//! The role of each tensor of an engine, decided once per instance.

use conch_backend_sdk as sdk;
use sdk::{BatchInput, BatchOutput, Error, ModelConfig};

use crate::facts::{Facts, Tensor};

/// Where an input of the engine comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputRole {
    /// Inputs of the requests, joined along the batch.
    Rows,
    /// The same, of a control of sequences: one element each.
    Control,
    /// Inputs of the requests, element after element.
    Ragged,
    /// Made from the shapes of the batch.
    Shapes(BatchInput),
    /// Values of the first request.
    Shape,
}

/// Where an output of the engine goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputRole {
    /// Into responses, if they want it.
    pub is_response: bool,
    /// Into the states of sequences.
    pub is_state: bool,
    /// Cut apart by the shapes of an input.
    pub cut: Option<BatchOutput>,
}

/// The role of each tensor, by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorRole {
    Input(InputRole),
    Output(OutputRole),
}

/// # Errors
/// What the configuration has wrong.
pub fn tensor_roles(config: &ModelConfig, facts: &Facts) -> Result<Vec<TensorRole>, Error> {
    let inputs = config.inputs()?;
    let outputs = config.outputs()?;
    let controls = config.controls()?;
    let batch_inputs = config.batch_inputs()?;
    let batch_outputs = config.batch_outputs()?;
    let states = config.states()?;
    let role = |tensor: &Tensor| {
        let is_named = |name: &std::ffi::CStr| name == tensor.name.as_c_str();
        if !tensor.is_input {
            return TensorRole::Output(OutputRole {
                is_response: outputs.iter().any(|output| is_named(&output.name)),
                is_state: states.iter().any(|state| is_named(&state.output)),
                cut: batch_outputs
                    .iter()
                    .find(|output| is_named(&output.target))
                    .cloned(),
            });
        }
        if tensor.is_shape {
            return TensorRole::Input(InputRole::Shape);
        }
        let made = batch_inputs
            .iter()
            .find(|input| input.targets.iter().any(|target| is_named(target)));
        if let Some(made) = made {
            return TensorRole::Input(InputRole::Shapes(made.clone()));
        }
        if controls.iter().any(|control| control.name == tensor.name()) {
            return TensorRole::Input(InputRole::Control);
        }
        let input = inputs.iter().find(|input| is_named(&input.name));
        match input.is_some_and(|input| input.is_ragged) {
            true => TensorRole::Input(InputRole::Ragged),
            false => TensorRole::Input(InputRole::Rows),
        }
    };
    Ok(facts.tensors.iter().map(role).collect())
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::json;

    use super::*;
    use crate::facts::testing::tensor;

    #[test]
    fn every_tensor_has_a_way() {
        let facts = Facts {
            tensors: vec![
                tensor(c"A", true, &[-1]),
                tensor(c"R", true, &[-1]),
                tensor(c"N", true, &[-1]),
                tensor(c"START", true, &[-1, 1]),
                Tensor {
                    is_shape: true,
                    ..tensor(c"S", true, &[2])
                },
                tensor(c"si", true, &[-1, 2]),
                tensor(c"Y", false, &[-1]),
                tensor(c"so", false, &[-1, 2]),
            ],
            profiles: Vec::new(),
        };
        let config = ModelConfig::new(json!({
            "max_batch_size": 4,
            "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1]},
                      {"name": "S", "data_type": "TYPE_INT64", "dims": [1]},
                      {"name": "R", "data_type": "TYPE_FP32", "dims": [-1],
                       "allow_ragged_batch": true}],
            "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}],
            "batch_input": [{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["N"],
                             "data_type": "TYPE_FP32", "source_input": ["R"]}],
            "batch_output": [{"target_name": ["Y"], "source_input": ["R"]}],
            "sequence_batching": {
                "control_input": [{"name": "START", "control": [
                    {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]}],
                "state": [{"input_name": "si", "output_name": "so", "data_type": "TYPE_FP32",
                           "dims": [2]}]}}));
        let roles = tensor_roles(&config, &facts).unwrap();
        let [a, r, n, start, s, si, y, so] = &roles[..] else {
            panic!("{roles:?}")
        };
        assert_eq!([a, si], [&TensorRole::Input(InputRole::Rows); 2]);
        assert_eq!(r, &TensorRole::Input(InputRole::Ragged));
        assert!(matches!(n, TensorRole::Input(InputRole::Shapes(_))));
        assert_eq!(start, &TensorRole::Input(InputRole::Control));
        assert_eq!(s, &TensorRole::Input(InputRole::Shape));
        assert!(matches!(
            y,
            TensorRole::Output(OutputRole {
                is_response: true,
                is_state: false,
                cut: Some(_)
            })
        ));
        assert!(matches!(
            so,
            TensorRole::Output(OutputRole {
                is_response: false,
                is_state: true,
                cut: None
            })
        ));
    }
}
