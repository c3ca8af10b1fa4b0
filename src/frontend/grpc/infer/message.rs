//! The head of a ModelInferRequest: everything but the raw contents, read from its protobuf fields
//! without copying text.
//!
//! Singular fields take their last value and maps their last entry, as protobuf parsers do. What a
//! client may repeat without bound (parameters, dimensions) is bounded here; inputs and outputs
//! beyond the model's own number are refused by `admit`, so the caller says how many are worth
//! reading.

use conch_engine::TENSORS_IN_PLACE;
use smallvec::SmallVec;

use crate::grpc::status::{GrpcCode, GrpcStatus};
use crate::grpc::wire::{FieldReader, FieldValue, MalformedMessage, varint};

/// Upstream has no such bound, but every parameter becomes an allocation.
const PARAMETERS_MAX: usize = 16 << 10;
/// No framework has tensors of more dimensions; ONNX Runtime and TensorRT stop far earlier.
const RANK_MAX: usize = 1 << 10;

/// Fields of one submessage; see [`super::reader`] for the message itself.
const FIELDS_MAX: usize = 64 << 10;

/// A parameter's value; `Missing` if none of the known kinds is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum ParameterChoice<'a> {
    #[default]
    Missing,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    Double(f64),
    Uint(u64),
}

/// Parameters by name; each name once.
pub(super) type MessageParameters<'a> = SmallVec<[(&'a str, ParameterChoice<'a>); 4]>;

#[derive(Debug, Default)]
pub(super) struct InputTensor<'a> {
    pub(super) name: &'a str,
    pub(super) data_type: &'a str,
    pub(super) shape: SmallVec<[i64; 6]>,
    pub(super) parameters: MessageParameters<'a>,
    /// InferTensorContents as sent, in one or more pieces that protobuf merges; none if the field
    /// is absent.
    pub(super) contents: SmallVec<[&'a [u8]; 1]>,
}

#[derive(Debug, Default)]
pub(super) struct RequestedOutput<'a> {
    pub(super) name: &'a str,
    pub(super) parameters: MessageParameters<'a>,
}

/// Which model a request is for: read first, because the model bounds the rest.
#[derive(Debug, Default, PartialEq)]
pub(super) struct InferTarget<'a> {
    pub(super) model_name: &'a str,
    pub(super) model_version: &'a str,
    pub(super) id: &'a str,
}

impl<'a> InferTarget<'a> {
    pub(super) fn read(head: &'a [u8]) -> Result<InferTarget<'a>, MalformedMessage> {
        let mut target = InferTarget::default();
        let mut fields = FieldReader::new(head);
        while let Some((number, value)) = fields.next()? {
            let place = match number {
                1 => &mut target.model_name,
                2 => &mut target.model_version,
                3 => &mut target.id,
                _ => continue,
            };
            *place = value.text()?.unwrap_or(place);
        }
        Ok(target)
    }
}

/// The rest of the head.
#[derive(Debug, Default)]
pub(super) struct InferHead<'a> {
    pub(super) parameters: MessageParameters<'a>,
    pub(super) inputs: SmallVec<[InputTensor<'a>; TENSORS_IN_PLACE]>,
    pub(super) outputs: SmallVec<[RequestedOutput<'a>; TENSORS_IN_PLACE]>,
}

impl<'a> InferHead<'a> {
    /// Reads parameters, at most `inputs_max` inputs and at most `outputs_max` outputs.
    pub(super) fn read(
        head: &'a [u8],
        inputs_max: usize,
        outputs_max: usize,
    ) -> Result<InferHead<'a>, GrpcStatus> {
        let mut message = InferHead::default();
        let mut fields = FieldReader::new(head);
        while let Some((number, value)) = fields.next().map_err(unparsable)? {
            let FieldValue::Bytes(bytes) = value else {
                continue;
            };
            match number {
                4 => put_parameter(&mut message.parameters, bytes)?,
                5 if message.inputs.len() < inputs_max => message.inputs.push(read_input(bytes)?),
                6 if message.outputs.len() < outputs_max => {
                    message.outputs.push(read_output(bytes)?)
                }
                _ => {}
            }
        }
        keep_last(&mut message.parameters);
        Ok(message)
    }
}

impl InferHead<'_> {
    /// Bytes of the head that are typed contents.
    pub(super) fn contents_bytes(&self) -> usize {
        let pieces = self.inputs.iter().flat_map(|input| &input.contents);
        pieces.map(|piece| piece.len()).sum()
    }
}

fn unparsable(_: MalformedMessage) -> GrpcStatus {
    GrpcStatus::unparsable()
}

fn read_input(bytes: &[u8]) -> Result<InputTensor<'_>, GrpcStatus> {
    let mut input = InputTensor::default();
    let mut fields = FieldReader::bounded(bytes, FIELDS_MAX);
    while let Some((number, value)) = fields.next().map_err(unparsable)? {
        match (number, value) {
            (1, _) => input.name = value.text().map_err(unparsable)?.unwrap_or(input.name),
            (2, _) => {
                input.data_type = value.text().map_err(unparsable)?.unwrap_or(input.data_type)
            }
            (3, FieldValue::Varint(dimension)) => put_dimension(&mut input.shape, dimension)?,
            (3, FieldValue::Bytes(packed)) => put_dimensions(&mut input.shape, packed)?,
            (4, FieldValue::Bytes(entry)) => put_parameter(&mut input.parameters, entry)?,
            (5, FieldValue::Bytes(contents)) => input.contents.push(contents),
            _ => {}
        }
    }
    keep_last(&mut input.parameters);
    Ok(input)
}

fn read_output(bytes: &[u8]) -> Result<RequestedOutput<'_>, GrpcStatus> {
    let mut output = RequestedOutput::default();
    let mut fields = FieldReader::bounded(bytes, FIELDS_MAX);
    while let Some((number, value)) = fields.next().map_err(unparsable)? {
        match (number, value) {
            (1, _) => output.name = value.text().map_err(unparsable)?.unwrap_or(output.name),
            (2, FieldValue::Bytes(entry)) => put_parameter(&mut output.parameters, entry)?,
            _ => {}
        }
    }
    keep_last(&mut output.parameters);
    Ok(output)
}

fn put_dimensions(shape: &mut SmallVec<[i64; 6]>, mut packed: &[u8]) -> Result<(), GrpcStatus> {
    while !packed.is_empty() {
        let (dimension, used) = varint(packed)
            .ok()
            .flatten()
            .ok_or_else(GrpcStatus::unparsable)?;
        put_dimension(shape, dimension)?;
        packed = packed.get(used..).unwrap_or_default();
    }
    Ok(())
}

fn put_dimension(shape: &mut SmallVec<[i64; 6]>, dimension: u64) -> Result<(), GrpcStatus> {
    if shape.len() == RANK_MAX {
        let message = format!("input shape has more than {RANK_MAX} dimensions");
        return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
    }
    // int64 on the wire is the two's complement.
    shape.push(dimension.cast_signed());
    Ok(())
}

/// Reads one entry of a `map<string, InferParameter>`.
fn put_parameter<'a>(
    parameters: &mut MessageParameters<'a>,
    entry: &'a [u8],
) -> Result<(), GrpcStatus> {
    if parameters.len() == PARAMETERS_MAX {
        let message = format!("more than {PARAMETERS_MAX} parameters");
        return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
    }
    let (mut name, mut choice) = ("", ParameterChoice::Missing);
    let mut fields = FieldReader::bounded(entry, FIELDS_MAX);
    while let Some((number, value)) = fields.next().map_err(unparsable)? {
        match (number, value) {
            (1, _) => name = value.text().map_err(unparsable)?.unwrap_or(name),
            (2, FieldValue::Bytes(bytes)) => {
                choice = read_choice(bytes, choice).map_err(unparsable)?
            }
            _ => {}
        }
    }
    parameters.push((name, choice));
    Ok(())
}

/// Reads an InferParameter; the last of its kinds counts.
fn read_choice<'a>(
    bytes: &'a [u8],
    mut choice: ParameterChoice<'a>,
) -> Result<ParameterChoice<'a>, MalformedMessage> {
    let mut fields = FieldReader::bounded(bytes, FIELDS_MAX);
    while let Some((number, value)) = fields.next()? {
        choice = match (number, value) {
            (1, FieldValue::Varint(value)) => ParameterChoice::Bool(value != 0),
            (2, FieldValue::Varint(value)) => ParameterChoice::Int(value.cast_signed()),
            (3, FieldValue::Bytes(_)) => value.text()?.map_or(choice, ParameterChoice::Text),
            (4, FieldValue::Fixed64(bits)) => ParameterChoice::Double(f64::from_bits(bits)),
            (5, FieldValue::Varint(value)) => ParameterChoice::Uint(value),
            _ => choice,
        };
    }
    Ok(choice)
}

/// Leaves the last entry of each name.
fn keep_last(parameters: &mut MessageParameters<'_>) {
    if parameters.len() < 2 {
        return;
    }
    parameters.reverse();
    parameters.sort_by(|a, b| a.0.cmp(b.0));
    parameters.dedup_by(|later, kept| later.0 == kept.0);
}

pub(super) fn find<'a>(
    parameters: &MessageParameters<'a>,
    name: &str,
) -> Option<ParameterChoice<'a>> {
    parameters
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, choice)| *choice)
}

#[cfg(test)]
mod tests {
    use conch_proto::Message as _;
    use conch_proto::inference as proto;
    use conch_proto::inference::infer_parameter::ParameterChoice as Sent;

    use super::*;

    fn parameter(choice: Sent) -> proto::InferParameter {
        proto::InferParameter {
            parameter_choice: Some(choice),
        }
    }

    #[test]
    fn reads_what_the_generated_encoder_writes() {
        let mut request = proto::ModelInferRequest {
            model_name: "m".into(),
            model_version: "3".into(),
            id: "grün".into(),
            ..Default::default()
        };
        for (name, choice) in [
            ("b", Sent::BoolParam(true)),
            ("d", Sent::DoubleParam(-0.5)),
            ("i", Sent::Int64Param(-7)),
            ("t", Sent::StringParam("x".into())),
            ("u", Sent::Uint64Param(u64::MAX)),
        ] {
            request.parameters.insert(name.into(), parameter(choice));
        }
        request
            .parameters
            .insert("none".into(), proto::InferParameter::default());
        let contents = proto::InferTensorContents {
            int_contents: vec![1, -1],
            ..Default::default()
        };
        let expected_contents = contents.encode_to_vec();
        request
            .inputs
            .push(proto::model_infer_request::InferInputTensor {
                name: "IN".into(),
                datatype: "INT32".into(),
                shape: vec![2, -1, i64::MAX],
                contents: Some(contents),
                ..Default::default()
            });
        request
            .outputs
            .push(proto::model_infer_request::InferRequestedOutputTensor {
                name: "OUT".into(),
                parameters: [("classification".to_string(), parameter(Sent::Int64Param(3)))].into(),
            });
        let head = request.encode_to_vec();

        let target = InferTarget::read(&head).unwrap();
        assert_eq!(
            target,
            InferTarget {
                model_name: "m",
                model_version: "3",
                id: "grün"
            }
        );
        let message = InferHead::read(&head, 9, 9).unwrap();
        let expected: &[(&str, ParameterChoice)] = &[
            ("b", ParameterChoice::Bool(true)),
            ("d", ParameterChoice::Double(-0.5)),
            ("i", ParameterChoice::Int(-7)),
            ("none", ParameterChoice::Missing),
            ("t", ParameterChoice::Text("x")),
            ("u", ParameterChoice::Uint(u64::MAX)),
        ];
        assert_eq!(message.parameters.as_slice(), expected);
        let input = &message.inputs[0];
        assert_eq!(
            (input.name, input.data_type, input.shape.as_slice()),
            ("IN", "INT32", &[2, -1, i64::MAX][..])
        );
        assert_eq!(input.contents.as_slice(), [expected_contents.as_slice()]);
        assert_eq!(message.outputs[0].name, "OUT");
        assert_eq!(
            message.outputs[0].parameters.as_slice(),
            [("classification", ParameterChoice::Int(3))]
        );
    }

    #[test]
    fn the_last_entry_of_a_name_counts() {
        let entry = |value| {
            let map = [("k".to_string(), parameter(Sent::Int64Param(value)))].into();
            proto::ModelInferRequest {
                parameters: map,
                ..Default::default()
            }
            .encode_to_vec()
        };
        let head = [entry(1), entry(2), entry(3)].concat();
        assert_eq!(
            InferHead::read(&head, 1, 1).unwrap().parameters.as_slice(),
            [("k", ParameterChoice::Int(3))]
        );
    }

    #[test]
    fn what_repeats_is_bounded() {
        let input = proto::ModelInferRequest {
            inputs: vec![Default::default()],
            ..Default::default()
        };
        let many = input.encode_to_vec().repeat(100_000);
        assert_eq!(InferHead::read(&many, 3, 3).unwrap().inputs.len(), 3);

        let entry = [0x22, 0x02, 0x0a, 0x00];
        assert!(InferHead::read(&entry.repeat(PARAMETERS_MAX), 1, 1).is_ok());
        let refused = InferHead::read(&entry.repeat(PARAMETERS_MAX + 1), 1, 1).unwrap_err();
        assert_eq!(refused.code, GrpcCode::InvalidArgument);

        let mut wide = proto::ModelInferRequest::default();
        wide.inputs
            .push(proto::model_infer_request::InferInputTensor {
                shape: vec![1; RANK_MAX + 1],
                ..Default::default()
            });
        let refused = InferHead::read(&wide.encode_to_vec(), 1, 1).unwrap_err();
        assert_eq!(refused.code, GrpcCode::InvalidArgument);
    }

    #[test]
    fn broken_text_and_fields_are_unparsable() {
        let cases: &[&[u8]] = &[
            &[0x0a, 0x01, 0xff],                   // model_name is not UTF-8
            &[0x2a, 0x03, 0x0a, 0x01, 0xff],       // an input's name is not UTF-8
            &[0x2a, 0x03, 0x1a, 0x01, 0x80],       // a dimension is cut off
            &[0x2a, 0x02, 0x0a, 0x05],             // an input's field is cut off
            &[0x22, 0x03, 0x0a, 0x01, 0xff],       // a parameter's name is not UTF-8
            &[0x22, 0x04, 0x12, 0x02, 0x08, 0x80], // a parameter's value is cut off
        ];
        for bytes in cases {
            let outcome = InferTarget::read(bytes)
                .map_err(unparsable)
                .and_then(|_| InferHead::read(bytes, 1, 1));
            assert_eq!(
                outcome.unwrap_err(),
                GrpcStatus::unparsable(),
                "{bytes:02x?}"
            );
        }
    }
}
