//! From response to answer.

use conch_config::DataType;
use conch_engine::{Error, Output, ParameterValue, Response};
use conch_memory::{ByteView, try_reserve};

use super::decode::{InferRequest, OutputForm};
use crate::api::Classes;
use crate::http::answer::{AnswerParts, ContentType, HttpResponse};
use crate::http::json::number_text::{self, NumberRoom};
use crate::http::json::write;

/// From this many bytes of outputs in JSON on, encoding leaves the shard: about half a millisecond
/// of work.
pub(crate) const OFFLOAD_FROM_BYTES: usize = 32 << 10;

/// Bytes of outputs that will be written as JSON.
pub(crate) fn json_work_bytes(response: &Response, request: &InferRequest) -> usize {
    let is_json = |output: &&Output| request.form_of(&output.name) == OutputForm::Json;
    response
        .outputs
        .iter()
        .filter(is_json)
        .map(|output| output.data.len())
        .sum()
}

/// Text that a byte of an output becomes, at most: a flag `false,`, a control character in a string
/// `\u0001`.
const TEXT_PER_BYTE: u64 = 6;

/// The longest text of a number, with its comma.
const ELEMENT_TEXT_BYTES_MAX: usize = size_of::<NumberRoom>();
/// Elements for which room is made at once.
const SLICE_ELEMENTS: usize = 256;

/// Bytes of the answer that `response` becomes, of which `json_bytes` are written as JSON, at most;
/// but for its names.
pub(crate) fn answer_bytes_max(response: &Response, json_bytes: usize) -> u64 {
    (json_bytes as u64)
        .saturating_mul(TEXT_PER_BYTE)
        .saturating_add(response.byte_size())
}

/// The id and the response's parameters as JSON, at most: what of an answer's head a client or a
/// backend sizes.
pub(crate) fn text_bytes(id: &str, response: &Response) -> usize {
    let parameters = response.parameters.iter().map(|parameter| {
        let value = match &parameter.value {
            ParameterValue::Text(text) => text.len(),
            _ => 0,
        };
        parameter.name.len() + value + ELEMENT_TEXT_BYTES_MAX
    });
    let bytes = id.len() + parameters.sum::<usize>();
    bytes.saturating_mul(TEXT_PER_BYTE as usize)
}

/// Renders `response`; its JSON goes into `body`. Members stand in upstream's order.
///
/// # Errors
/// In upstream's words: an output has no JSON form, or no classes, or its bytes do not agree with
/// its shape.
pub(crate) fn encode(
    mut response: Response,
    request: &InferRequest,
    classes: &Classes,
    mut body: Vec<u8>,
) -> Result<HttpResponse, Error> {
    classes.apply(&mut response)?;
    let mut parts = AnswerParts::new();
    try_reserve(&mut body, 256 + text_bytes(request.id(), &response))?;
    body.push(b'{');
    if !request.id().is_empty() {
        body.extend_from_slice(b"\"id\":");
        write::string(&mut body, request.id().as_bytes());
        body.push(b',');
    }
    body.extend_from_slice(b"\"model_name\":");
    write::string(&mut body, response.model.name.as_bytes());
    body.extend_from_slice(b",\"model_version\":\"");
    write::signed(&mut body, response.model.version);
    body.push(b'"');
    if !response.parameters.is_empty() {
        body.extend_from_slice(b",\"parameters\":{");
        for (index, parameter) in response.parameters.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            write::string(&mut body, parameter.name.as_bytes());
            body.push(b':');
            write_parameter(&mut body, &parameter.value);
        }
        body.push(b'}');
    }
    body.extend_from_slice(b",\"outputs\":[");
    for (index, output) in response.outputs.iter_mut().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        let form = request.form_of(&output.name);
        write_output(&mut body, output, form)?;
        if form == OutputForm::Binary && !output.data.is_empty() {
            parts.push(std::mem::replace(&mut output.data, ByteView::empty()));
        }
    }
    body.extend_from_slice(b"]}");
    let mut answer = HttpResponse::json(body);
    if !parts.is_empty() {
        answer.content_type = ContentType::Octets;
        answer.json_length = Some(answer.body.len());
        answer.parts = parts;
    }
    Ok(answer)
}

/// Appends the value of a response's parameter.
pub(crate) fn write_parameter(body: &mut Vec<u8>, value: &ParameterValue) {
    match value {
        ParameterValue::Text(text) => write::string(body, text.as_bytes()),
        ParameterValue::Int(value) => write::signed(body, *value),
        ParameterValue::Bool(value) => {
            body.extend_from_slice(if *value { b"true" } else { b"false" })
        }
        ParameterValue::Double(value) => write::double(body, *value),
    }
}

fn write_output(body: &mut Vec<u8>, output: &Output, form: OutputForm) -> Result<(), Error> {
    body.extend_from_slice(b"{\"name\":");
    write::string(body, output.name.as_bytes());
    body.extend_from_slice(b",\"datatype\":\"");
    body.extend_from_slice(output.data_type.name().as_bytes());
    body.extend_from_slice(b"\",\"shape\":[");
    for (index, dim) in output.shape.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        write::signed(body, *dim);
    }
    body.push(b']');
    match form {
        OutputForm::Binary => {
            body.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            write::unsigned(body, output.data.len() as u64);
            body.push(b'}');
        }
        OutputForm::Region => {}
        OutputForm::Json => {
            body.extend_from_slice(b",\"data\":[");
            write_data(body, output)?;
            body.push(b']');
        }
    }
    body.push(b'}');
    Ok(())
}

/// Elements of `output`. Unlike for inputs, no dimensions mean one element.
///
/// # Errors
/// INTERNAL if there are more than can be counted.
pub(crate) fn element_count(output: &Output) -> Result<usize, Error> {
    output
        .shape
        .iter()
        .try_fold(1usize, |count, dim| {
            count.checked_mul(usize::try_from(*dim).ok()?)
        })
        .ok_or_else(|| size_mismatch(output))
}

/// Appends the elements of `output`, with commas between them.
///
/// # Errors
/// As [`encode`].
pub(crate) fn write_data(body: &mut Vec<u8>, output: &Output) -> Result<(), Error> {
    let count = element_count(output)?;
    let bytes = output
        .data
        .as_slice()
        .ok_or_else(|| Error::internal("an output lies in memory that the CPU cannot read"))?;
    match output.data_type {
        DataType::Fp16 | DataType::Bf16 => Err(Error::invalid(format!(
            "sending {} data via JSON is not supported. Please use the binary data format for \
             output",
            output.data_type.name()
        ))),
        DataType::Bytes => write_strings(body, output, bytes, count),
        DataType::Bool => each(body, output, bytes, count, |room, [value]: [u8; 1]| {
            let text: &[u8] = if value == 0 { b"false" } else { b"true" };
            room[..text.len()].copy_from_slice(text);
            text.len()
        }),
        DataType::Uint8 => each(body, output, bytes, count, |room, value| {
            number_text::unsigned(room, u8::from_le_bytes(value).into())
        }),
        DataType::Uint16 => each(body, output, bytes, count, |room, value| {
            number_text::unsigned(room, u16::from_le_bytes(value).into())
        }),
        DataType::Uint32 => each(body, output, bytes, count, |room, value| {
            number_text::unsigned(room, u32::from_le_bytes(value).into())
        }),
        DataType::Uint64 => each(body, output, bytes, count, |room, value| {
            number_text::unsigned(room, u64::from_le_bytes(value))
        }),
        DataType::Int8 => each(body, output, bytes, count, |room, value| {
            number_text::signed(room, i8::from_le_bytes(value).into())
        }),
        DataType::Int16 => each(body, output, bytes, count, |room, value| {
            number_text::signed(room, i16::from_le_bytes(value).into())
        }),
        DataType::Int32 => each(body, output, bytes, count, |room, value| {
            number_text::signed(room, i32::from_le_bytes(value).into())
        }),
        DataType::Int64 => each(body, output, bytes, count, |room, value| {
            number_text::signed(room, i64::from_le_bytes(value))
        }),
        // Upstream widens first: the digits are those of the double.
        DataType::Fp32 => each(body, output, bytes, count, |room, value| {
            number_text::double(room, f32::from_le_bytes(value).into())
        }),
        DataType::Fp64 => each(body, output, bytes, count, |room, value| {
            number_text::double(room, f64::from_le_bytes(value))
        }),
    }
}

fn size_mismatch(output: &Output) -> Error {
    Error::internal(format!(
        "Failed to write 'data' field: output tensor shape does not match size of output for '{}'",
        output.name
    ))
}

#[inline]
fn each<const WIDTH: usize>(
    body: &mut Vec<u8>,
    output: &Output,
    bytes: &[u8],
    count: usize,
    mut write_one: impl FnMut(&mut NumberRoom, [u8; WIDTH]) -> usize,
) -> Result<(), Error> {
    if count.checked_mul(WIDTH) != Some(bytes.len()) {
        return Err(size_mismatch(output));
    }
    let (elements, _) = bytes.as_chunks::<WIDTH>();
    for slice in elements.chunks(SLICE_ELEMENTS) {
        // An element is written into the room at the end of those before it, which is longer than
        // any text with its comma.
        let mut end = body.len();
        let room_bytes = slice.len() * size_of::<NumberRoom>();
        try_reserve(body, room_bytes)?;
        body.resize(end + room_bytes, b',');
        for element in slice {
            let rest = body.get_mut(end..).unwrap_or_default();
            let Some(room) = rest.first_chunk_mut() else {
                break;
            };
            let length = write_one(room, *element);
            room[length] = b',';
            end += length + 1;
        }
        body.truncate(end);
    }
    if !elements.is_empty() {
        body.pop();
    }
    Ok(())
}

fn write_strings(
    body: &mut Vec<u8>,
    output: &Output,
    bytes: &[u8],
    count: usize,
) -> Result<(), Error> {
    let mismatch = || {
        Error::internal(format!(
            "output tensor shape does not match size of output for '{}'",
            output.name
        ))
    };
    let mut rest = bytes;
    for index in 0..count {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or_else(mismatch)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| mismatch())?;
        let (text, behind) = behind.split_at_checked(length).ok_or_else(mismatch)?;
        try_reserve(body, text.len().saturating_mul(TEXT_PER_BYTE as usize) + 3)?;
        if index > 0 {
            body.push(b',');
        }
        write::string(body, text);
        rest = behind;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use conch_engine::ResponseParts;

    use super::super::decode::{DecodeBounds, JsonLimits, decode};
    use super::*;

    /// What a client is told of one output of a model.
    fn encoded(data_type: DataType, shape: &[i64], bytes: &[u8]) -> Result<String, Error> {
        let mut message = conch_config::parse_text("config.pbtxt", "name: 'm' backend: 'b'")
            .expect("the test's configuration parses");
        conch_config::normalize(&mut message);
        let config = conch_config::ResolvedConfig::from_message(message).expect("it is valid, too");
        let request = ByteView::copy_of(br#"{"inputs":[]}"#);
        let bounds = DecodeBounds {
            model_name: "m",
            limits: JsonLimits {
                input_bytes_max: 100,
                strict_integers: false,
            },
            regions: &conch_engine::Regions::default(),
        };
        let request = decode(&request, request.len(), &bounds).expect("a sound request");
        let output = Output {
            name: "O".into(),
            data_type,
            shape: shape.iter().copied().collect(),
            data: ByteView::copy_of(bytes),
        };
        let response = Response::from(ResponseParts {
            model: conch_engine::testing::version("m", 1, &Arc::new(config)),
            outputs: [output].into_iter().collect(),
            parameters: Vec::new(),
        });
        encode(response, &request, &Classes::default(), Vec::new())
            .map(|answer| String::from_utf8(answer.body).expect("JSON is text"))
    }

    #[test]
    fn bytes_must_agree_with_the_shape() {
        let good = |data: &str, data_type: &str, shape: &str| {
            Ok(format!(
                "{{\"model_name\":\"m\",\"model_version\":\"1\",\
                     \"outputs\":[{{\"name\":\"O\",\"datatype\":\"{data_type}\",\
                     \"shape\":{shape},\"data\":{data}}}]}}"
            ))
        };
        assert_eq!(
            encoded(DataType::Uint16, &[2], &[1, 0, 2, 0]),
            good("[1,2]", "UINT16", "[2]")
        );
        assert_eq!(
            encoded(DataType::Uint16, &[], &[1, 0]),
            good("[1]", "UINT16", "[]")
        );
        let text = b"\x01\0\0\0a\0\0\0\0";
        assert_eq!(
            encoded(DataType::Bytes, &[2], text),
            good(r#"["a",""]"#, "BYTES", "[2]")
        );
        let mismatch = "output tensor shape does not match size of output for 'O'";
        let written = format!("Failed to write 'data' field: {mismatch}");
        for (data_type, shape, bytes, expected) in [
            (DataType::Uint16, &[2][..], &[1, 0, 2][..], &written[..]),
            (DataType::Uint16, &[2], &[1, 0, 2, 0, 3, 0], &written),
            (DataType::Fp32, &[1, 0], &[0; 4], &written),
            (DataType::Fp64, &[-1], &[0; 8], &written),
            (DataType::Int64, &[1 << 61, 16], &[], &written),
            (DataType::Bytes, &[3], text, mismatch),
            (DataType::Bytes, &[1], &[9, 0, 0, 0, 1], mismatch),
        ] {
            assert_eq!(
                encoded(data_type, shape, bytes),
                Err(Error::internal(expected.to_owned())),
                "{data_type:?} {shape:?} {bytes:?}"
            );
        }
    }
}
