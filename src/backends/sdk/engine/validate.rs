//! Checks a configuration against the model that it describes, in upstream's words.

use super::tensor::{Signature, TensorInfo};
use crate::config::ControlInput;
use crate::{BatchInput, DataType, Error, ModelConfig, StateConfig, TensorConfig, shape_text};

/// Checks inputs, outputs, sequence controls, states and batch inputs: their number, names, data
/// types and shapes.
///
/// # Errors
/// `InvalidArgument` if configuration and model disagree, or the configuration asks for what
/// engines' backends do not do.
pub fn validate(
    model_name: &str,
    config: &ModelConfig,
    signature: &Signature,
) -> Result<(), Error> {
    let inputs = config.inputs()?;
    let states = config.states()?;
    let controls = config.controls()?;
    let batch_inputs = config.batch_inputs()?;
    let batch_outputs = config.batch_outputs()?;

    let mut control_names: Vec<_> = controls.iter().map(|control| &control.name).collect();
    control_names.sort_unstable();
    control_names.dedup();
    let optional_count = inputs.iter().filter(|input| input.is_optional).count();
    let batch_input_count: usize = batch_inputs.iter().map(|input| input.targets.len()).sum();
    let expected =
        inputs.len() - optional_count + control_names.len() + states.len() + batch_input_count;
    if signature.inputs.len() != expected {
        return Err(Error::invalid(format!(
            "unable to load model '{model_name}', configuration expects {expected} inputs, model \
             provides {}",
            signature.inputs.len()
        )));
    }
    let max_batch_size = config.max_batch_size();
    for input in &inputs {
        check_input(model_name, input, signature, max_batch_size)?;
    }
    for control in &controls {
        check_control(model_name, control, signature)?;
    }
    for batch_input in &batch_inputs {
        check_batch_input(model_name, batch_input, signature)?;
    }
    for output in &config.outputs()? {
        // What is cut apart by the shapes of inputs comes from the model in a shape of its own.
        let has_own_shape = batch_outputs
            .iter()
            .any(|other| other.target == output.name);
        check_output(model_name, output, signature, max_batch_size, has_own_shape)?;
    }
    for state in &states {
        check_state(model_name, state, signature)?;
    }
    Ok(())
}

fn check_input(
    model_name: &str,
    input: &TensorConfig,
    signature: &Signature,
    max_batch_size: i64,
) -> Result<(), Error> {
    if input.is_optional && max_batch_size != 0 {
        return Err(Error::invalid(format!(
            "unable to load model '{model_name}', optional input '{}' is not supported for models \
             that support batching",
            input.name()
        )));
    }
    let info = signature
        .input(&input.name)
        .ok_or_else(|| unexpected("input", input.name(), names(&signature.inputs)))?;
    check_type(model_name, "input", input.name(), input.data_type, info)?;
    if input.is_ragged {
        check_ragged(model_name, input, info)
    } else {
        check_dims(model_name, input, info, max_batch_size, false)
    }
}

fn check_control(
    model_name: &str,
    control: &ControlInput,
    signature: &Signature,
) -> Result<(), Error> {
    let info = signature
        .inputs
        .iter()
        .find(|info| info.name() == control.name)
        .ok_or_else(|| {
            Error::internal(format!(
                "configuration specified sequence control '{}', but model does not provide that \
                 input",
                control.name
            ))
        })?;
    check_type(model_name, "input", &control.name, control.data_type, info)
}

fn check_batch_input(
    model_name: &str,
    batch_input: &BatchInput,
    signature: &Signature,
) -> Result<(), Error> {
    for target in &batch_input.targets {
        let name = target.to_string_lossy();
        let info = signature.input(target).ok_or_else(|| {
            Error::internal(format!(
                "configuration specified batch input '{name}', but model does not provide that \
                 input"
            ))
        })?;
        check_type(model_name, "input", &name, batch_input.data_type, info)?;
    }
    Ok(())
}

fn check_output(
    model_name: &str,
    output: &TensorConfig,
    signature: &Signature,
    max_batch_size: i64,
    has_own_shape: bool,
) -> Result<(), Error> {
    let info = signature
        .output(&output.name)
        .ok_or_else(|| unexpected("output", output.name(), names(&signature.outputs)))?;
    check_type(model_name, "output", output.name(), output.data_type, info)?;
    if has_own_shape {
        return Ok(());
    }
    check_dims(model_name, output, info, max_batch_size, true)
}

fn check_state(model_name: &str, state: &StateConfig, signature: &Signature) -> Result<(), Error> {
    let name = state.output.to_string_lossy();
    let info = signature
        .output(&state.output)
        .ok_or_else(|| unexpected("output", &name, names(&signature.outputs)))?;
    check_type(model_name, "output state", &name, state.data_type, info)?;
    let name = state.input.to_string_lossy();
    let info = signature
        .input(&state.input)
        .ok_or_else(|| unexpected("input", &name, names(&signature.inputs)))?;
    check_type(model_name, "input state", &name, state.data_type, info)
}

fn check_type(
    model_name: &str,
    role: &str,
    name: &str,
    configured: DataType,
    info: &TensorInfo,
) -> Result<(), Error> {
    if configured == info.data_type {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "unable to load model '{model_name}', configuration expects datatype {} for {role} \
         '{name}', model provides TYPE_{}",
        configured.config_name(),
        info.data_type.name()
    )))
}

fn check_ragged(model_name: &str, input: &TensorConfig, info: &TensorInfo) -> Result<(), Error> {
    if input.is_optional {
        return Err(Error::invalid(format!(
            "unable to load model '{model_name}', configuration expects model provides input with \
             shape [-1] for ragged input '{}', which is not supported for optional input",
            input.name()
        )));
    }
    if info.dims != [-1] {
        return Err(Error::invalid(format!(
            "unable to load model '{model_name}', configuration expects model provides input with \
             shape [-1]  for ragged input '{}', model provides {}",
            input.name(),
            shape_text(&info.dims)
        )));
    }
    Ok(())
}

/// Outputs must agree exactly; where the model leaves an input's dimension open the configuration
/// may fix it.
fn check_dims(
    model_name: &str,
    tensor: &TensorConfig,
    info: &TensorInfo,
    max_batch_size: i64,
    is_exact: bool,
) -> Result<(), Error> {
    let dims = tensor.model_dims();
    let model_dims = &info.dims;
    if model_dims.is_empty() {
        // A scalar. Its configuration must say [1], since it cannot say [].
        return match dims.iter().all(|&dim| dim == 1) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "unable to load model '{model_name}', scalar tensor '{}', should only provide 1 in \
                 the model configuration when the model doesn't support batching. Model \
                 configuration provided: {}.",
                tensor.name(),
                shape_text(dims)
            ))),
        };
    }
    let is_batching = max_batch_size > 0;
    let prefix = format!("model '{model_name}', tensor '{}': ", tensor.name());
    if is_batching && model_dims.first() != Some(&-1) {
        return Err(Error::invalid(format!(
            "{prefix}for the model to support batching the shape should have at least 1 dimension \
             and the first dimension must be -1; but shape expected by the model is {}",
            shape_text(model_dims)
        )));
    }
    let mut full = Vec::with_capacity(dims.len() + 1);
    if is_batching {
        full.push(-1);
    }
    full.extend_from_slice(dims);
    let fits = model_dims.len() == full.len()
        && model_dims
            .iter()
            .zip(&full)
            .all(|(&model, &configured)| model == configured || (model == -1 && !is_exact));
    if fits {
        return Ok(());
    }
    let explanation = if is_batching {
        format!(
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit \
             tensor shape, making complete shape {})",
            shape_text(&full)
        )
    } else {
        format!("(shape {})", shape_text(&full))
    };
    Err(Error::invalid(format!(
        "{prefix}the model expects {} dimensions (shape {}) but the model configuration specifies \
         {} dimensions {explanation}",
        model_dims.len(),
        shape_text(model_dims),
        full.len()
    )))
}

fn names(infos: &[TensorInfo]) -> Vec<&str> {
    infos.iter().map(TensorInfo::name).collect()
}

/// The allowed names are sorted, as upstream's are.
fn unexpected(role: &str, name: &str, mut allowed: Vec<&str>) -> Error {
    allowed.sort_unstable();
    Error::invalid(format!(
        "unexpected inference {role} '{name}', allowed {role}s are: {}",
        allowed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::DataType;

    fn info(name: &str, data_type: DataType, dims: &[i64]) -> TensorInfo {
        TensorInfo {
            name: CString::new(name).unwrap(),
            data_type,
            dims: dims.to_vec(),
        }
    }

    #[test]
    fn allowed_names_are_sorted() {
        assert_eq!(
            unexpected("input", "x", vec!["ZB", "AB"]).message(),
            "unexpected inference input 'x', allowed inputs are: AB, ZB"
        );
    }

    /// The message of the refusal, or "" if all is well, for a model `A: FP32[-1,16] -> B:
    /// FP32[-1,-1]`.
    fn check(config: &str) -> String {
        let signature = Signature {
            inputs: vec![info("A", DataType::Fp32, &[-1, 16])],
            outputs: vec![info("B", DataType::Fp32, &[-1, -1])],
            initializers: vec![info("W", DataType::Fp32, &[2])],
        };
        let config = ModelConfig::parse(config.as_bytes()).unwrap();
        match validate("m", &config, &signature) {
            Ok(()) => String::new(),
            Err(error) => error.message().to_owned(),
        }
    }

    fn config(max_batch_size: i64, input: &str, output: &str) -> String {
        format!(
            r#"{{"max_batch_size": {max_batch_size}, "input": [{input}], "output": [{output}]}}"#
        )
    }

    const A: &str = r#"{"name": "A", "data_type": "TYPE_FP32", "dims": [16]}"#;
    const OPTIONAL_W: &str =
        r#"{"name": "W", "data_type": "TYPE_FP32", "dims": [2], "optional": true}"#;
    const B: &str = r#"{"name": "B", "data_type": "TYPE_FP32", "dims": [-1]}"#;

    #[test]
    fn accepts_what_the_model_provides() {
        for config in [
            config(8, A, B),
            config(
                0,
                &A.replace("[16]", "[-1, 16]"),
                &B.replace("[-1]", "[-1, -1]"),
            ),
            // A fixed dimension where the model leaves it open.
            config(
                0,
                &A.replace("[16]", "[4, 16]"),
                &B.replace("[-1]", "[-1, -1]"),
            ),
            // A weight given as an optional input.
            config(
                0,
                &format!("{}, {OPTIONAL_W}", A.replace("[16]", "[-1, 16]")),
                &B.replace("[-1]", "[-1, -1]"),
            ),
        ] {
            assert_eq!(check(&config), "", "{config}");
        }
    }

    #[test]
    fn refuses_what_it_does_not() {
        for (config, expected) in [
            (
                config(8, &format!("{A}, {A}"), B),
                "unable to load model 'm', configuration expects 2 inputs, model provides 1",
            ),
            (
                config(8, &A.replace("\"A\"", "\"C\""), B),
                "unexpected inference input 'C', allowed inputs are: A",
            ),
            (
                config(8, A, &B.replace("\"B\"", "\"C\"")),
                "unexpected inference output 'C', allowed outputs are: B",
            ),
            (
                config(8, &A.replace("FP32", "STRING"), B),
                "unable to load model 'm', configuration expects datatype TYPE_STRING for input \
                 'A', model provides TYPE_FP32",
            ),
            (
                config(8, &A.replace("16", "15"), B),
                "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,16]) but the \
                 model configuration specifies 2 dimensions (an initial batch dimension because \
                 max_batch_size > 0 followed by the explicit tensor shape, making complete shape \
                 [-1,15])",
            ),
            (
                config(0, A, B),
                "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,16]) but the \
                 model configuration specifies 1 dimensions (shape [16])",
            ),
            // An output's dimension must not be fixed where the model leaves it open.
            (
                config(8, A, &B.replace("[-1]", "[3]")),
                "model 'm', tensor 'B': the model expects 2 dimensions (shape [-1,-1]) but the \
                 model configuration specifies 2 dimensions (an initial batch dimension because \
                 max_batch_size > 0 followed by the explicit tensor shape, making complete shape \
                 [-1,3])",
            ),
            (
                config(8, &format!("{A}, {OPTIONAL_W}"), B),
                "unable to load model 'm', optional input 'W' is not supported for models that \
                 support batching",
            ),
            (
                config(8, &A.replace('}', r#", "allow_ragged_batch": true}"#), B),
                "unable to load model 'm', configuration expects model provides input with shape \
                 [-1]  for ragged input 'A', model provides [-1,16]",
            ),
        ] {
            assert_eq!(check(&config), expected, "{config}");
        }
    }

    #[test]
    fn batch_inputs_and_outputs() {
        let batch_input = |name: &str, data_type: &str| {
            let made = format!(
                r#""batch_input": [{{
                "kind": "BATCH_ELEMENT_COUNT", "target_name": ["{name}"],
                "data_type": "{data_type}", "source_input": ["A"] }}]"#
            );
            check(&config(8, "", B).replacen('{', &format!("{{{made}, "), 1))
        };
        assert_eq!(batch_input("A", "TYPE_FP32"), "");
        assert_eq!(
            batch_input("N", "TYPE_FP32"),
            "configuration specified batch input 'N', but model does not provide that input"
        );
        assert_eq!(
            batch_input("A", "TYPE_INT32"),
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'A', \
             model provides TYPE_FP32"
        );
        let batch_output = r#""batch_output": [{"target_name": ["B"], "source_input": ["A"]}]"#;
        let fixed = B.replace("[-1]", "[7]");
        let cut = config(8, A, &fixed).replacen('{', &format!("{{{batch_output}, "), 1);
        assert_eq!(check(&cut), "");
    }

    #[test]
    fn scalars_are_configured_as_one_element() {
        let scalar = info("A", DataType::Fp32, &[]);
        for (dims, is_fine) in [(&[1][..], true), (&[1, 1], true), (&[2], false)] {
            let tensor = TensorConfig {
                name: c"A".to_owned(),
                data_type: DataType::Fp32,
                dims: dims.to_vec(),
                reshape: None,
                is_optional: false,
                is_ragged: false,
            };
            assert_eq!(check_dims("m", &tensor, &scalar, 0, true).is_ok(), is_fine);
        }
    }

    #[test]
    fn states_and_controls_count_as_inputs() {
        let signature = Signature {
            inputs: vec![
                info("A", DataType::Fp32, &[-1, 4]),
                info("start", DataType::Int32, &[-1, 1]),
                info("state_in", DataType::Fp32, &[-1, 2]),
            ],
            outputs: vec![
                info("B", DataType::Fp32, &[-1, 4]),
                info("state_out", DataType::Fp32, &[-1, 2]),
            ],
            initializers: vec![],
        };
        let json = r#"{"max_batch_size": 2,
            "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [4]}],
            "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [4]}],
            "sequence_batching": {
                "control_input": [{"name": "start", "control": [
                    {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}],
                "state": [{"input_name": "state_in", "output_name": "state_out",
                           "data_type": "TYPE_FP32", "dims": [2]}]}}"#;
        let config = ModelConfig::parse(json.as_bytes()).unwrap();
        assert_eq!(validate("m", &config, &signature), Ok(()));
        let wrong =
            ModelConfig::parse(json.replace("int32_false", "fp32_false").as_bytes()).unwrap();
        assert!(validate("m", &wrong, &signature).is_err());
    }
}
