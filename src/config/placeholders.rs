//! Stand-ins for what a backend would say of a model's tensors.

use conch_proto::inference::{DataType, ModelConfig, ModelTensorReshape};

/// `config` with something valid wherever an input or output lacks its name, type or shape, for
/// which [`validate_io`](crate::validate_io) refuses it. What it refuses of the result is wrong
/// whatever the backend fills in. None if nothing is missing.
pub fn with_placeholders(config: &ModelConfig) -> Option<ModelConfig> {
    let mut filled = config.clone();
    for input in &mut filled.input {
        fill(
            &mut input.name,
            &mut input.data_type,
            &mut input.dims,
            &mut input.reshape,
        );
    }
    for output in &mut filled.output {
        fill(
            &mut output.name,
            &mut output.data_type,
            &mut output.dims,
            &mut output.reshape,
        );
    }
    (filled != *config).then_some(filled)
}

fn fill(
    name: &mut String,
    data_type: &mut i32,
    dims: &mut Vec<i64>,
    reshape: &mut Option<ModelTensorReshape>,
) {
    if name.is_empty() {
        "?".clone_into(name);
    }
    if *data_type == DataType::TypeInvalid as i32 {
        *data_type = DataType::TypeFp32 as i32;
    }
    if dims.is_empty() {
        // What it is to be reshaped from is not known, either.
        *reshape = None;
        dims.extend([-1; 3]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse_text, validate_io};

    #[test]
    fn what_is_wrong_whatever_the_backend_says() {
        // Configuration; whether something is missing; what is wrong beside that.
        let table = [
            (
                "input { name: 'X' data_type: TYPE_FP32 dims: [ 4 ] }",
                false,
                "",
            ),
            ("", false, ""),
            ("input { name: 'X' }", true, ""),
            ("output { dims: [ 4 ] }", true, ""),
            (
                "input { name: 'X' format: FORMAT_NCHW } output { name: 'Y' reshape { } }",
                true,
                "",
            ),
            (
                "input { name: 'X' } output { name: 'Y' data_type: TYPE_INT8 dims: [ 0 ] }",
                true,
                "model output 'Y' dimension must be integer >= 1, or -1 to indicate a \
                 variable-size dimension for ",
            ),
        ];
        for (text, is_missing, expected) in table {
            let config = parse_text("f", text).unwrap();
            let filled = with_placeholders(&config);
            assert_eq!(filled.is_some(), is_missing, "{text}");
            let refusal = validate_io(&filled.unwrap_or(config));
            let message = refusal.err().map_or(String::new(), |error| error.message);
            assert_eq!(message, expected, "{text}");
        }
    }
}
