//! Encodes a ModelInferResponse: fields in the order in which protobuf writes them, tensors by reference.
//!
//! A small response becomes one buffer. In a larger one, tensors from [`BY_REFERENCE_FROM_BYTES`] on are not copied: the message is a
//! list of pieces, each a shared handle on its bytes.

use bytes::Bytes;
use conch_engine::{Output, Parameter, ParameterValue, Response};
use smallvec::SmallVec;

use crate::grpc::frame::{MESSAGE_BYTES_MAX, PREFIX_BYTES, put_prefix};
use crate::grpc::status::{Code, Status};
use crate::grpc::wire::{
    BYTES, FIXED64, VARINT, bytes_field_len, put_bytes, put_tag, put_text, put_varint, varint_len,
};

/// Below this, copying into the shared buffer costs less than another piece.
const BY_REFERENCE_FROM_BYTES: usize = 4 << 10;

/// A message as it goes to the wire, its gRPC prefix included.
pub(in crate::grpc) type Pieces = SmallVec<[Bytes; 2]>;

/// Encodes `response` to the request `id`.
///
/// # Errors
/// In upstream's words if it exceeds what a gRPC message may hold; INTERNAL if an output lies in GPU memory.
pub(in crate::grpc) fn encode(response: &Response, id: &str) -> Result<Pieces, Status> {
    let mut head = Vec::with_capacity(PREFIX_BYTES + 256);
    // The prefix comes last, when the length is known.
    head.resize(PREFIX_BYTES, 0);
    put_text(&mut head, 1, &response.model.name);
    put_text(&mut head, 2, &response.model.version.to_string());
    put_text(&mut head, 3, id);
    for parameter in &response.parameters {
        put_parameter(&mut head, parameter);
    }
    for output in &response.outputs {
        put_output(&mut head, output);
    }
    let raw_bytes: usize = response
        .outputs
        .iter()
        .map(|output| bytes_field_len(output.data.len()))
        .sum();
    let message_bytes = head.len() - PREFIX_BYTES + raw_bytes;
    if message_bytes > MESSAGE_BYTES_MAX {
        let message = format!(
            "Response has byte size {message_bytes} which exceeds gRPC's byte size limit {MESSAGE_BYTES_MAX}."
        );
        return Err(Status::new(Code::InvalidArgument, message));
    }
    put_prefix(&mut head, message_bytes);
    let mut pieces = Pieces::new();
    for output in &response.outputs {
        let bytes = output.data.as_slice().ok_or_else(|| {
            Status::new(
                Code::Internal,
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
    Ok(pieces)
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
