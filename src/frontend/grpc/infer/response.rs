//! Encodes a ModelInferResponse: fields in the order in which protobuf writes them, tensors by
//! reference.
//!
//! A small response becomes one buffer. In a larger one, tensors from [`BY_REFERENCE_FROM_BYTES`]
//! on are not copied: the message is a list of pieces, each a shared handle on its bytes.

use bytes::Bytes;
use conch_engine::{Output, Parameter, ParameterValue, Response};
use conch_memory::try_reserve;
use smallvec::{SmallVec, smallvec};

use crate::api::Classes;
use crate::grpc::frame::{MESSAGE_BYTES_MAX, PREFIX_BYTES, put_prefix};
use crate::grpc::status::{GrpcCode, GrpcStatus};
use crate::grpc::wire::{
    BYTES, FIXED64, VARINT, bytes_field_len, put_bytes, put_tag, put_text, put_varint, varint_len,
};

/// Below this, copying into the shared buffer costs less than another piece.
const BY_REFERENCE_FROM_BYTES: usize = 4 << 10;

/// Fields of ModelStreamInferResponse.
const ERROR_MESSAGE: u32 = 1;
const INFER_RESPONSE: u32 = 2;
/// The tag of a response within the message of a stream, and its length: messages are bounded by an
/// int32.
const WRAPPING_BYTES_MAX: usize = 6;
/// What a parameter takes beside its texts, at most.
const PARAMETER_BYTES: usize = 32;
/// The parameter that each response of a stream has.
const FINAL_RESPONSE: &str = "triton_final_response";

/// A message as it goes to the wire, its gRPC prefix included.
pub(in crate::grpc) type Pieces = SmallVec<[Bytes; 2]>;

/// Encodes `response` to the request `id`, with `classes` in place of the outputs that are wanted
/// so.
///
/// # Errors
/// In upstream's words if it exceeds what a gRPC message may hold, or an output has no classes;
/// INTERNAL if an output lies in GPU memory.
pub(in crate::grpc) fn encode(
    mut response: Response,
    id: &str,
    classes: &Classes,
) -> Result<Pieces, GrpcStatus> {
    classes.apply(&mut response)?;
    encode_as(&response, id, None)
}

/// Encodes `response` to the request `id` as a ModelStreamInferResponse.
///
/// # Errors
/// As [`encode`].
pub(in crate::grpc) fn encode_streamed(
    mut response: Response,
    id: &str,
    classes: &Classes,
    is_final: bool,
) -> Result<Pieces, GrpcStatus> {
    classes.apply(&mut response)?;
    encode_as(&response, id, Some(is_final))
}

/// A ModelStreamInferResponse without outputs: an error, or (no message) an empty response.
/// `target` holds the model's name and version, as the client sent them, and whether it is the
/// final one; none for a request that was not accepted.
pub(in crate::grpc) fn encode_failure(
    message: &str,
    id: &str,
    target: Option<(&str, &str, bool)>,
) -> Pieces {
    let mut inner = Vec::new();
    if let Some((name, version, _)) = target {
        put_text(&mut inner, 1, name);
        put_text(&mut inner, 2, version);
    }
    put_text(&mut inner, 3, id);
    if let Some((_, _, is_final)) = target {
        put_parameter(&mut inner, &final_parameter(is_final));
    }
    let mut out = vec![0; PREFIX_BYTES];
    put_text(&mut out, ERROR_MESSAGE, message);
    put_bytes(&mut out, INFER_RESPONSE, &inner);
    let message_bytes = out.len() - PREFIX_BYTES;
    put_prefix(&mut out, message_bytes);
    smallvec![Bytes::from(out)]
}

fn final_parameter(is_final: bool) -> Parameter {
    Parameter {
        name: FINAL_RESPONSE.into(),
        value: ParameterValue::Bool(is_final),
    }
}

/// `is_final` is given for a response of a stream, which is wrapped once more.
fn encode_as(response: &Response, id: &str, is_final: Option<bool>) -> Result<Pieces, GrpcStatus> {
    let lead_bytes = match is_final {
        None => PREFIX_BYTES,
        Some(_) => PREFIX_BYTES + WRAPPING_BYTES_MAX,
    };
    let texts = response.parameters.iter().map(|parameter| {
        let value = match &parameter.value {
            ParameterValue::Text(text) => text.len(),
            _ => 0,
        };
        parameter.name.len() + value + PARAMETER_BYTES
    });
    let mut head = Vec::new();
    let text_bytes = id.len() + texts.sum::<usize>();
    try_reserve(&mut head, lead_bytes + 256 + text_bytes)?;
    // The prefix comes last, when the length is known.
    head.resize(lead_bytes, 0);
    put_text(&mut head, 1, &response.model.name);
    put_text(&mut head, 2, &response.model.version.to_string());
    put_text(&mut head, 3, id);
    for parameter in &response.parameters {
        if is_final.is_none() || &*parameter.name != FINAL_RESPONSE {
            put_parameter(&mut head, parameter);
        }
    }
    if let Some(is_final) = is_final {
        put_parameter(&mut head, &final_parameter(is_final));
    }
    for output in &response.outputs {
        put_output(&mut head, output);
    }
    let raw_bytes: usize = response
        .outputs
        .iter()
        .map(|output| bytes_field_len(output.data.len()))
        .sum();
    let message_bytes = head.len() - lead_bytes + raw_bytes;
    if message_bytes > MESSAGE_BYTES_MAX {
        let message = format!(
            "Response has byte size {message_bytes} which exceeds gRPC's byte size limit \
             {MESSAGE_BYTES_MAX}."
        );
        return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
    }
    let unused_bytes = put_lead(&mut head, lead_bytes, message_bytes);
    let mut pieces = Pieces::new();
    for output in &response.outputs {
        let bytes = output.data.as_slice().ok_or_else(|| {
            GrpcStatus::new(
                GrpcCode::Internal,
                format!("output '{}' is not in host memory", output.name),
            )
        })?;
        put_tag(&mut head, 6, BYTES);
        put_varint(&mut head, bytes.len() as u64);
        if bytes.len() < BY_REFERENCE_FROM_BYTES {
            head.extend_from_slice(bytes);
        } else {
            pieces.push(Bytes::from(std::mem::take(&mut head)));
            pieces.push(Bytes::from_owner(output.data.clone()));
        }
    }
    if !head.is_empty() {
        pieces.push(Bytes::from(head));
    }
    if unused_bytes > 0
        && let Some(first) = pieces.first_mut()
    {
        drop(first.split_to(unused_bytes));
    }
    Ok(pieces)
}

/// Writes what stands before the fields of a message of `message_bytes`, right in front of them:
/// they begin at `lead_bytes`. Returns how many bytes at the start are left unused.
fn put_lead(head: &mut [u8], lead_bytes: usize, message_bytes: usize) -> usize {
    let mut wrapping = Vec::new();
    if lead_bytes > PREFIX_BYTES {
        put_tag(&mut wrapping, INFER_RESPONSE, BYTES);
        put_varint(&mut wrapping, message_bytes as u64);
    }
    let wrapped_at = lead_bytes - wrapping.len();
    let unused_bytes = wrapped_at - PREFIX_BYTES;
    if let Some(place) = head.get_mut(wrapped_at..lead_bytes) {
        place.copy_from_slice(&wrapping);
    }
    if let Some(place) = head.get_mut(unused_bytes..) {
        put_prefix(place, wrapping.len() + message_bytes);
    }
    unused_bytes
}

/// An InferOutputTensor: name, datatype, shape. Contents are always raw.
fn put_output(out: &mut Vec<u8>, output: &Output) {
    let data_type = output.data_type.name();
    let dimensions_bytes: usize = output
        .shape
        .iter()
        .map(|dimension| varint_len(dimension.cast_unsigned()))
        .sum();
    let mut length = bytes_field_len(data_type.len());
    if !output.name.is_empty() {
        length += bytes_field_len(output.name.len());
    }
    if !output.shape.is_empty() {
        length += bytes_field_len(dimensions_bytes);
    }
    put_tag(out, 5, BYTES);
    put_varint(out, length as u64);
    put_text(out, 1, &output.name);
    put_text(out, 2, data_type);
    if !output.shape.is_empty() {
        put_tag(out, 3, BYTES);
        put_varint(out, dimensions_bytes as u64);
        for dimension in &output.shape {
            put_varint(out, dimension.cast_unsigned());
        }
    }
}

/// An entry of `map<string, InferParameter>`.
fn put_parameter(out: &mut Vec<u8>, parameter: &Parameter) {
    let mut value = Vec::new();
    match &parameter.value {
        ParameterValue::Bool(flag) => {
            put_tag(&mut value, 1, VARINT);
            put_varint(&mut value, u64::from(*flag));
        }
        ParameterValue::Int(number) => {
            put_tag(&mut value, 2, VARINT);
            put_varint(&mut value, number.cast_unsigned());
        }
        ParameterValue::Text(text) => put_bytes(&mut value, 3, text.as_bytes()),
        ParameterValue::Double(number) => {
            put_tag(&mut value, 4, FIXED64);
            value.extend_from_slice(&number.to_le_bytes());
        }
    }
    put_tag(out, 4, BYTES);
    put_varint(
        out,
        (bytes_field_len(parameter.name.len()) + bytes_field_len(value.len())) as u64,
    );
    put_bytes(out, 1, parameter.name.as_bytes());
    put_bytes(out, 2, &value);
}

#[cfg(test)]
mod tests {
    use conch_proto::Message;
    use conch_proto::inference::ModelStreamInferResponse;
    use conch_proto::inference::infer_parameter::ParameterChoice;

    use super::*;

    fn decoded(pieces: &Pieces) -> ModelStreamInferResponse {
        let wire: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let (prefix, message) = wire.split_at(PREFIX_BYTES);
        assert_eq!(prefix[1..], (message.len() as u32).to_be_bytes());
        ModelStreamInferResponse::decode(message).unwrap()
    }

    #[test]
    fn failures_say_what_they_belong_to() {
        let message = decoded(&encode_failure("why", "7", None));
        let inner = message.infer_response.unwrap();
        assert_eq!((&*message.error_message, &*inner.id), ("why", "7"));
        assert!(inner.model_name.is_empty() && inner.parameters.is_empty());

        let message = decoded(&encode_failure("", "7", Some(("m", "3", true))));
        let inner = message.infer_response.unwrap();
        assert!(message.error_message.is_empty());
        assert_eq!((&*inner.model_name, &*inner.model_version), ("m", "3"));
        assert_eq!(
            inner.parameters[FINAL_RESPONSE].parameter_choice,
            Some(ParameterChoice::BoolParam(true))
        );
    }

    #[test]
    fn a_wrapped_message_begins_right_behind_its_lead() {
        for message_bytes in [0, 1, 127, 128, 70_000, i32::MAX as usize] {
            let lead_bytes = PREFIX_BYTES + WRAPPING_BYTES_MAX;
            let mut head = vec![0; lead_bytes];
            let unused_bytes = put_lead(&mut head, lead_bytes, message_bytes);
            let (prefix, field) = head[unused_bytes..].split_at(PREFIX_BYTES);
            let wrapped_bytes = field.len() + message_bytes;
            assert_eq!(prefix[1..], (wrapped_bytes as u32).to_be_bytes());
            let mut expected = Vec::new();
            put_tag(&mut expected, INFER_RESPONSE, BYTES);
            put_varint(&mut expected, message_bytes as u64);
            assert_eq!(field, expected);
            assert_eq!(put_lead(&mut head[..PREFIX_BYTES], PREFIX_BYTES, 5), 0);
        }
    }
}
