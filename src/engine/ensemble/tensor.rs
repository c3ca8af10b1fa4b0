//! Data that passes between steps: tensors, as views that are never copied, and the sequence that
//! they belong to.

use std::sync::Arc;

use conch_config::{DataType, ResolvedConfig, TensorSpec, dims_agree};
use conch_memory::{Budget, ByteView};
use smallvec::SmallVec;

use crate::request::context::Request;
use crate::request::correlation_id::CorrelationId;
use crate::tensor::Shape;
use crate::{Error, Output, Parameter, ParameterValue, Response, SequenceFlags, private_copy};

/// The value of one of the ensemble's tensors.
#[derive(Clone, Debug)]
pub(crate) struct TensorData {
    /// None: an optional input that the request lacks, or an output that a step did not make.
    pub(crate) tensor: Option<StepTensor>,
    /// Of the run that made it; none for the ensemble's own inputs.
    pub(crate) sequence: Option<StepSequence>,
}

#[derive(Clone, Debug)]
pub(crate) struct StepTensor {
    pub(crate) data_type: DataType,
    /// With the batch dimension, if whoever made it has one.
    pub(crate) shape: Shape,
    pub(crate) chunks: SmallVec<[ByteView; 1]>,
    /// Of the request that made it; 0 without batching.
    pub(crate) batch_size: u32,
}

/// The sequence that a step's request is part of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepSequence {
    pub(crate) id: CorrelationId,
    pub(crate) flags: SequenceFlags,
}

/// The value of each of the ensemble's inputs in a request.
pub(crate) fn of_request(request: &Request, config: &ResolvedConfig) -> SmallVec<[TensorData; 1]> {
    let value = |spec: &TensorSpec| {
        let input = request.inputs.iter().find(|input| input.name == spec.name);
        let tensor = input.map(|input| StepTensor {
            data_type: input.data_type,
            shape: match input.shape.get(1..) {
                // It has no batch dimension of its own.
                Some(dims) if spec.is_shape_tensor && request.batch_size > 0 => {
                    Shape::from_slice(dims)
                }
                _ => input.shape.clone(),
            },
            chunks: input.chunks.clone(),
            batch_size: request.batch_size,
        });
        TensorData {
            tensor,
            sequence: None,
        }
    };
    config.inputs.iter().map(value).collect()
}

/// The value of each of a step's outputs in one response to its request.
pub(crate) fn of_response<'n>(
    mut response: Response,
    names: impl Iterator<Item = &'n str>,
    batch_size: u32,
    own: &StepSequence,
) -> Result<SmallVec<[TensorData; 1]>, Error> {
    let told = sequence_of_response(&response.parameters, own)?;
    let sequence = told.clone().unwrap_or_else(|| own.clone());
    // Outputs stay where they are: they are large, and the response goes after this.
    let outputs = &mut response.outputs;
    let value = |name: &str| {
        let found = outputs.iter().position(|output| *output.name == *name);
        let tensor = found
            .map(|place| outputs.remove(place))
            .map(|output| StepTensor {
                data_type: output.data_type,
                shape: output.shape,
                chunks: SmallVec::from_buf([output.data]),
                batch_size,
            });
        // What was not made starts and ends nothing, unless the response said so.
        let sequence = match (&tensor, &told) {
            (None, None) => StepSequence {
                flags: SequenceFlags::NONE,
                ..own.clone()
            },
            _ => sequence.clone(),
        };
        TensorData {
            tensor,
            sequence: Some(sequence),
        }
    };
    Ok(names.map(value).collect())
}

/// The sequence that a response's parameters name, if they do.
fn sequence_of_response(
    parameters: &[Parameter],
    own: &StepSequence,
) -> Result<Option<StepSequence>, Error> {
    let mut told: Option<StepSequence> = None;
    for parameter in parameters {
        let flag = match &*parameter.name {
            "sequence_id" => {
                let id = match &parameter.value {
                    ParameterValue::Int(id) => CorrelationId::Unsigned(id.cast_unsigned()),
                    ParameterValue::Text(id) => CorrelationId::Text(id.clone()),
                    _ => return Err(Error::invalid(ID_TYPE)),
                };
                told.get_or_insert_with(|| own.without_flags()).id = id;
                continue;
            }
            "sequence_start" => SequenceFlags::START,
            "sequence_end" => SequenceFlags::END,
            _ => continue,
        };
        let ParameterValue::Bool(is_set) = parameter.value else {
            return Err(Error::invalid(format!(
                "expect parameter '{}' to be TRITONSERVER_PARAMETER_BOOL",
                parameter.name
            )));
        };
        let told = told.get_or_insert_with(|| own.without_flags());
        told.flags |= flag.when(is_set);
    }
    Ok(told)
}

const ID_TYPE: &str = "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or \
                       TRITONSERVER_PARAMETER_STRING";

impl StepSequence {
    fn without_flags(&self) -> StepSequence {
        StepSequence {
            id: self.id.clone(),
            flags: SequenceFlags::NONE,
        }
    }

    /// As upstream tells it in the response of an ensemble: always, also if there is none.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let id = match &self.id {
            CorrelationId::Text(text) => ParameterValue::Text(text.clone()),
            CorrelationId::Unsigned(number) => ParameterValue::Int(number.cast_signed()),
        };
        let flag = |name: &str, flag| Parameter {
            name: name.into(),
            value: ParameterValue::Bool(self.flags.contains(flag)),
        };
        vec![
            Parameter {
                name: "sequence_id".into(),
                value: id,
            },
            flag("sequence_start", SequenceFlags::START),
            flag("sequence_end", SequenceFlags::END),
        ]
    }
}

impl StepTensor {
    /// Its shape for a reader whose configured dimensions are `dims`, which has a batch dimension
    /// or not. Where only one side has one, a batch of one is added or taken away, if the
    /// dimensions agree then.
    pub(crate) fn shape_for(&self, dims: &[i64], is_batching: bool) -> Shape {
        match (is_batching, self.batch_size) {
            (true, 0) if dims_agree(dims, &self.shape) => std::iter::once(1)
                .chain(self.shape.iter().copied())
                .collect(),
            (false, 1) if !dims_agree(dims, &self.shape) => {
                Shape::from_slice(self.shape.get(1..).unwrap_or(&[]))
            }
            _ => self.shape.clone(),
        }
    }

    /// The tensor as an output of the ensemble. What has to be copied is charged to `budget`.
    ///
    /// # Errors
    /// Without memory for what has to be copied.
    pub(crate) fn into_output(
        self,
        spec: &TensorSpec,
        is_batching: bool,
        budget: Option<&Arc<Budget>>,
    ) -> Result<Output, Error> {
        let dims = spec.reshape.as_ref().unwrap_or(&spec.dims);
        let shape = self.shape_for(dims, is_batching);
        let shape = match &spec.reshape {
            Some(made) => reshaped(&shape, made, &spec.dims, usize::from(is_batching)),
            None => shape,
        };
        Ok(Output {
            name: spec.name.clone(),
            data_type: self.data_type,
            shape,
            // One piece: an input of the ensemble that is its output, too, may come in several. And
            // private: what a client may still write to is no answer.
            data: private_copy::join(&self.chunks, budget)?,
        })
    }
}

/// The shape that clients see of an output that is configured with another shape than it is made
/// in.
fn reshaped(shape: &Shape, made: &[i64], shown: &[i64], batch_dim_count: usize) -> Shape {
    let Some((batch, dims)) = shape.split_at_checked(batch_dim_count) else {
        return shape.clone();
    };
    if dims.len() != made.len() {
        return shape.clone();
    }
    let variable = made.iter().zip(dims).filter(|(made, _)| **made == -1);
    let mut variable = variable.map(|(_, got)| *got);
    let mut target = Shape::from_slice(batch);
    for dim in shown {
        if *dim != -1 {
            target.push(*dim);
        } else if let Some(got) = variable.next() {
            target.push(got);
        } else {
            return shape.clone();
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ResponseParts;
    use crate::testing::model;

    #[test]
    fn a_batch_of_one_comes_and_goes_where_the_rest_agrees() {
        // Configured dimensions, whether the reader batches, the maker's batch size, the shape, the
        // shape for the reader.
        let table = [
            (&[4][..], true, 2, &[2, 4][..], &[2, 4][..]),
            (&[4], false, 0, &[4], &[4]),
            (&[4], true, 0, &[4], &[1, 4]),
            (&[-1], true, 0, &[7], &[1, 7]),
            // It counts its batch itself.
            (&[4], true, 0, &[3, 4], &[3, 4]),
            (&[-1, 4], false, 3, &[3, 4], &[3, 4]),
            (&[4], false, 1, &[1, 4], &[4]),
            (&[-1, 4], false, 1, &[1, 4], &[1, 4]),
            // Refused by whoever gets it.
            (&[4], false, 2, &[2, 4], &[2, 4]),
        ];
        for (dims, is_batching, batch_size, shape, expected) in table {
            let tensor = StepTensor {
                data_type: DataType::Fp32,
                shape: Shape::from_slice(shape),
                chunks: SmallVec::new(),
                batch_size,
            };
            let got = tensor.shape_for(dims, is_batching);
            assert_eq!(
                &*got, expected,
                "{dims:?} {is_batching} {batch_size} {shape:?}"
            );
        }
    }

    fn parameter(name: &str, value: ParameterValue) -> Parameter {
        Parameter {
            name: name.into(),
            value,
        }
    }

    #[test]
    fn a_response_may_name_another_sequence() {
        use ParameterValue::{Bool, Int, Text};
        let own = StepSequence {
            id: CorrelationId::Unsigned(5),
            flags: SequenceFlags::START | SequenceFlags::END,
        };
        let sequence = |id, flags| Ok(Some(StepSequence { id, flags }));
        let five = || CorrelationId::Unsigned(5);
        let table = [
            (vec![], Ok(None)),
            (vec![("other", Int(1))], Ok(None)),
            (
                vec![("sequence_id", Int(9))],
                sequence(CorrelationId::Unsigned(9), SequenceFlags::NONE),
            ),
            (
                vec![("sequence_id", Text("x".into()))],
                sequence(CorrelationId::Text("x".into()), SequenceFlags::NONE),
            ),
            (
                vec![("sequence_start", Bool(true))],
                sequence(five(), SequenceFlags::START),
            ),
            (
                vec![
                    ("sequence_start", Bool(false)),
                    ("sequence_end", Bool(true)),
                ],
                sequence(five(), SequenceFlags::END),
            ),
            (vec![("sequence_id", Bool(true))], Err(ID_TYPE)),
            (
                vec![("sequence_start", Int(1))],
                Err("expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"),
            ),
            (
                vec![("sequence_end", Text("1".into()))],
                Err("expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
            ),
        ];
        for (parameters, expected) in table {
            let parameters: Vec<Parameter> = parameters
                .into_iter()
                .map(|(name, value)| parameter(name, value))
                .collect();
            let got = sequence_of_response(&parameters, &own);
            let got = got.as_ref().map_err(|error| &*error.message);
            assert_eq!(
                got,
                expected.as_ref().map_err(|message| *message),
                "{parameters:?}"
            );
        }
    }

    #[test]
    fn what_is_not_made_is_absent_and_names_are_those_of_the_step() {
        let model = model(
            "input { name: 'a' data_type: TYPE_INT32 dims: 1 } output \
             { name: 'x' data_type: TYPE_INT32 dims: 1 }",
        );
        let output = |name: &str, byte: u8| Output {
            name: name.into(),
            data_type: DataType::Uint8,
            shape: Shape::from_slice(&[1]),
            data: ByteView::copy_of(&[byte]),
        };
        let response = Response::from(ResponseParts {
            model: Arc::clone(&model),
            outputs: [output("unknown", 0), output("second", 2)]
                .into_iter()
                .collect(),
            parameters: vec![parameter("sequence_id", ParameterValue::Int(8))],
        });
        let own = StepSequence {
            id: CorrelationId::Unsigned(1),
            flags: SequenceFlags::END,
        };
        let values = of_response(response, ["first", "second"].into_iter(), 0, &own).unwrap();
        assert!(values[0].tensor.is_none());
        let tensor = values[1].tensor.as_ref().unwrap();
        assert_eq!(tensor.chunks[0].as_slice(), Some(&[2][..]));
        let sequence = values[1].sequence.as_ref().unwrap();
        assert_eq!(
            (&sequence.id, sequence.flags),
            (&CorrelationId::Unsigned(8), SequenceFlags::NONE)
        );
        let told: Vec<String> = sequence
            .parameters()
            .iter()
            .map(|p| format!("{} {:?}", p.name, p.value))
            .collect();
        assert_eq!(
            told,
            [
                "sequence_id Int(8)",
                "sequence_start Bool(false)",
                "sequence_end Bool(false)"
            ]
        );
    }

    #[test]
    fn outputs_are_shown_in_the_configured_shape() {
        let spec = |text: &str| {
            let inputs = "input { name: 'a' data_type: TYPE_INT32 dims: 1 }";
            let model = model(&format!(
                "{inputs} output {{ name: 'x' data_type: TYPE_INT32 {text} }}"
            ));
            model.config.outputs[0].clone()
        };
        let made = |shape: &[i64]| StepTensor {
            data_type: DataType::Int32,
            shape: Shape::from_slice(shape),
            chunks: [ByteView::copy_of(&[1, 2]), ByteView::copy_of(&[3])]
                .into_iter()
                .collect(),
            batch_size: 0,
        };
        for (text, shape, expected) in [
            ("dims: [ -1, 2 ]", &[5, 2][..], &[5, 2][..]),
            ("dims: [ 2, 3 ] reshape { shape: [ 6 ] }", &[6], &[2, 3]),
            ("dims: [ -1, 1 ] reshape { shape: [ -1 ] }", &[7], &[7, 1]),
            // Of another rank than configured: as it is.
            (
                "dims: [ -1, 1 ] reshape { shape: [ -1 ] }",
                &[7, 3],
                &[7, 3],
            ),
        ] {
            let output = made(shape).into_output(&spec(text), false, None).unwrap();
            assert_eq!(&*output.shape, expected, "{text}");
            assert_eq!(output.data.as_slice(), Some(&[1, 2, 3][..]), "in one piece");
        }
    }
}
