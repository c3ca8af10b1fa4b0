//! Pairs each output with the input that it repeats.

use std::ffi::{CStr, CString};

use conch_backend_sdk as sdk;
use sdk::{DataType, Error, Request, Response, TensorConfig, element_count, shape_text};

/// An output and the input that it repeats.
#[derive(Clone, Debug)]
pub struct Pair {
    pub output: CString,
    pub input: CString,
    /// What stands for an optional input that a request leaves out; `None` if the input is not
    /// optional.
    pub absent: Option<Absent>,
}

/// Zeros in the shape of the configuration, with 1 for each variable dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    pub data_type: DataType,
    dims: Vec<i64>,
    is_batching: bool,
}

impl Absent {
    /// Writes the zeros (for BYTES: empty strings, whose encoding is zeros too) as the output
    /// `name`.
    pub fn write(
        &self,
        response: &mut Response<'_>,
        name: &CStr,
        request: Request<'_>,
    ) -> Result<(), Error> {
        let (shape, byte_count) = self.size(request)?;
        response
            .output(name, self.data_type, &shape, byte_count)?
            .zero_rest();
        Ok(())
    }

    /// Its shape for a request, and its bytes.
    pub fn size(&self, request: Request<'_>) -> Result<(Vec<i64>, usize), Error> {
        let mut shape = Vec::with_capacity(self.dims.len() + 1);
        if self.is_batching {
            let rows = request.input_at(0)?.shape().first().copied();
            shape.push(rows.unwrap_or(1));
        }
        shape.extend_from_slice(&self.dims);
        // The length word of an empty string takes 4 bytes.
        let byte_count = element_count(&shape)
            .and_then(|count| count.checked_mul(self.data_type.element_bytes().unwrap_or(4)))
            .ok_or_else(|| Error::internal(format!("bad shape {}", shape_text(&shape))))?;
        Ok((shape, byte_count))
    }
}

/// Pairs outputs with inputs.
///
/// # Errors
/// `InvalidArgument` if an output has no input, or one of another data type or shape.
pub fn pair(
    inputs: &[TensorConfig],
    outputs: &[TensorConfig],
    is_batching: bool,
) -> Result<Vec<Pair>, Error> {
    outputs
        .iter()
        .enumerate()
        .map(|(index, output)| {
            let counterpart = output.name().replacen("OUTPUT", "INPUT", 1);
            let input = inputs
                .iter()
                .find(|input| counterpart != output.name() && input.name() == counterpart)
                .or_else(|| inputs.get(index))
                .ok_or_else(|| {
                    Error::invalid(format!(
                        "expected an input for output '{}', the configuration has {} inputs",
                        output.name(),
                        inputs.len()
                    ))
                })?;
            if input.data_type != output.data_type {
                return Err(Error::invalid(format!(
                    "expected input and output datatype to match, got {} and {}",
                    input.data_type.config_name(),
                    output.data_type.config_name()
                )));
            }
            if input.model_dims() != output.model_dims() {
                return Err(Error::invalid(format!(
                    "expected input and output shape to match, got {} and {}",
                    shape_text(input.model_dims()),
                    shape_text(output.model_dims())
                )));
            }
            Ok(Pair {
                output: output.name.clone(),
                input: input.name.clone(),
                absent: input.is_optional.then(|| Absent {
                    data_type: input.data_type,
                    dims: input.model_dims().iter().map(|&dim| dim.max(1)).collect(),
                    is_batching,
                }),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, data_type: DataType, dims: &[i64]) -> TensorConfig {
        TensorConfig {
            name: CString::new(name).unwrap(),
            data_type,
            dims: dims.to_vec(),
            reshape: None,
            is_optional: false,
            is_ragged: false,
        }
    }

    fn names(inputs: &[&str], outputs: &[&str]) -> Option<Vec<(String, String)>> {
        let tensors = |names: &[&str]| -> Vec<_> {
            names
                .iter()
                .map(|name| tensor(name, DataType::Fp32, &[4]))
                .collect()
        };
        let pairs = pair(&tensors(inputs), &tensors(outputs), false).ok()?;
        let text = |name: &CString| name.to_str().unwrap().to_owned();
        Some(
            pairs
                .iter()
                .map(|pair| (text(&pair.output), text(&pair.input)))
                .collect(),
        )
    }

    #[test]
    fn pairs_by_name_and_else_by_index() {
        for (inputs, outputs, expected) in [
            (
                &["INPUT0", "INPUT1"][..],
                &["OUTPUT1", "OUTPUT0"][..],
                Some(&[("OUTPUT1", "INPUT1"), ("OUTPUT0", "INPUT0")][..]),
            ),
            (&["a", "b"], &["x", "y"], Some(&[("x", "a"), ("y", "b")])),
            (
                &["INPUT__1", "INPUT__0"],
                &["OUTPUT__0"],
                Some(&[("OUTPUT__0", "INPUT__0")]),
            ),
            (&["a"], &["x", "y"], None),
            (&["a", "b"], &[], Some(&[])),
        ] {
            let expected = expected.map(|pairs| {
                pairs
                    .iter()
                    .map(|(output, input)| (output.to_string(), input.to_string()))
                    .collect()
            });
            assert_eq!(names(inputs, outputs), expected);
        }
    }

    #[test]
    fn types_and_shapes_must_match() {
        let input = tensor("INPUT0", DataType::Fp32, &[-1, 4]);
        for (output, is_fine) in [
            (tensor("OUTPUT0", DataType::Fp32, &[-1, 4]), true),
            (tensor("OUTPUT0", DataType::Int32, &[-1, 4]), false),
            (tensor("OUTPUT0", DataType::Fp32, &[4, -1]), false),
        ] {
            assert_eq!(
                pair(std::slice::from_ref(&input), &[output], true).is_ok(),
                is_fine
            );
        }
    }

    #[test]
    fn optional_inputs_have_a_stand_in() {
        let mut input = tensor("INPUT0", DataType::Fp32, &[-1, 4]);
        input.is_optional = true;
        let output = tensor("OUTPUT0", DataType::Fp32, &[-1, 4]);
        let pairs = pair(&[input], &[output], true).unwrap();
        assert_eq!(
            pairs[0].absent,
            Some(Absent {
                data_type: DataType::Fp32,
                dims: vec![1, 4],
                is_batching: true
            })
        );
    }
}
