//! The bytes of one identity inference, found and written with the least work that is still correct
//! for it.
//!
//! These functions know one model with one FP32 input. They are what a floor server needs to read
//! and write the same bytes as a real one, and no more: no checks of shapes, names or types.

use std::io::Write as _;

/// The model's name in every reply.
const MODEL: &str = "identity";

/// Where the parts of one HTTP request lie in the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpHead {
    /// Length of the request line and header fields, blank line included.
    pub head_bytes: usize,
    /// `Content-Length`.
    pub body_bytes: usize,
    /// `Inference-Header-Content-Length`, where binary tensors follow the JSON.
    pub json_bytes: Option<usize>,
    /// The status of a response; 0 for a request.
    pub status: u16,
}

/// Reads a request head; `None` when `bytes` ends before its blank line.
///
/// # Errors
/// The parser's text when this is not HTTP/1.1 or a length is not a number.
pub fn request_head(bytes: &[u8]) -> Result<Option<HttpHead>, String> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes).map_err(|error| error.to_string())? {
        httparse::Status::Partial => Ok(None),
        httparse::Status::Complete(head_bytes) => lengths(head_bytes, 0, request.headers).map(Some),
    }
}

/// Reads a response head; `None` when `bytes` ends before its blank line.
///
/// # Errors
/// The parser's text when this is not HTTP/1.1 or a length is not a number.
#[cfg(test)]
fn response_head(bytes: &[u8]) -> Result<Option<HttpHead>, String> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(bytes).map_err(|error| error.to_string())? {
        httparse::Status::Partial => Ok(None),
        httparse::Status::Complete(head_bytes) => {
            let status = response.code.unwrap_or(0);
            lengths(head_bytes, status, response.headers).map(Some)
        }
    }
}

fn lengths(
    head_bytes: usize,
    status: u16,
    fields: &[httparse::Header<'_>],
) -> Result<HttpHead, String> {
    let mut head = HttpHead {
        head_bytes,
        body_bytes: 0,
        json_bytes: None,
        status,
    };
    for field in fields {
        if field.name.eq_ignore_ascii_case("content-length") {
            head.body_bytes = number(field.value)?;
        } else if field
            .name
            .eq_ignore_ascii_case("inference-header-content-length")
        {
            head.json_bytes = Some(number(field.value)?);
        }
    }
    Ok(head)
}

fn number(value: &[u8]) -> Result<usize, String> {
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| format!("not a length: {}", String::from_utf8_lossy(value)))
}

/// Writes everything of the reply that precedes `tensor_bytes` of binary tensor.
pub fn binary_reply_head(reply: &mut Vec<u8>, tensor_bytes: usize) {
    let json = format!(
        "{{\"model_name\":\"{MODEL}\",\"model_version\":\"1\",\"outputs\":[{{\"name\":\"OUTPUT0\",\
         \"datatype\":\"FP32\",\"shape\":[1,{}],\
         \"parameters\":{{\"binary_data_size\":{tensor_bytes}}}}}]}}",
        tensor_bytes / 4
    );
    reply.clear();
    write!(
        reply,
        "HTTP/1.1 200 OK\r\nContent-Type: \
         application/octet-stream\r\nInference-Header-Content-Length: {}\r\nContent-Length: \
         {}\r\n\r\n{json}",
        json.len(),
        json.len() + tensor_bytes
    )
    .expect("a vector takes any write");
}

/// Writes everything of the reply that precedes `data_bytes` of JSON beginning at the member
/// `"data"`.
pub fn json_reply_head(reply: &mut Vec<u8>, shape: &str, data_bytes: usize) {
    let json = format!(
        "{{\"model_name\":\"{MODEL}\",\"model_version\":\"1\",\"outputs\":[{{\"name\":\"OUTPUT0\",\
         \"datatype\":\"FP32\",\"shape\":[{shape}],"
    );
    reply.clear();
    write!(
        reply,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
        json.len() + data_bytes
    )
    .expect("a vector takes any write");
}

/// Position of the first `needle` in `haystack`.
pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

/// The range of `raw_input_contents` (field 7) in a ModelInferRequest with one input.
pub fn raw_input(message: &[u8]) -> Option<std::ops::Range<usize>> {
    let mut at = 0_usize;
    while at < message.len() {
        let key = varint(message, &mut at)?;
        if key & 7 != 2 {
            return None;
        }
        let length = usize::try_from(varint(message, &mut at)?).ok()?;
        let end = at.checked_add(length).filter(|end| *end <= message.len())?;
        if key >> 3 == 7 {
            return Some(at..end);
        }
        at = end;
    }
    None
}

fn varint(message: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *message.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}

/// Appends `value` in base 128.
pub fn push_varint(target: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        target.push((value & 127) as u8 | 128);
        value >>= 7;
    }
    target.push(value as u8);
}

/// Appends field `number` with `bytes` as its length-delimited value.
pub fn push_field(target: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    push_varint(target, number << 3 | 2);
    push_varint(target, bytes.len() as u64);
    target.extend_from_slice(bytes);
}

/// The gRPC frame prefix and everything of a ModelInferResponse that precedes `tensor_bytes` of raw
/// output.
pub fn grpc_reply_head(tensor_bytes: usize) -> Vec<u8> {
    let mut shape = Vec::new();
    push_varint(&mut shape, 1);
    push_varint(&mut shape, tensor_bytes as u64 / 4);
    let mut output = Vec::new();
    push_field(&mut output, 1, b"OUTPUT0");
    push_field(&mut output, 2, b"FP32");
    push_field(&mut output, 3, &shape);
    let mut message = Vec::with_capacity(64);
    push_field(&mut message, 1, MODEL.as_bytes());
    push_field(&mut message, 2, b"1");
    push_field(&mut message, 5, &output);
    push_varint(&mut message, 6 << 3 | 2);
    push_varint(&mut message, tensor_bytes as u64);
    let mut framed = vec![0];
    let length = u32::try_from(message.len() + tensor_bytes).expect("replies stay below 4 GiB");
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_found_and_measured() {
        let text = b"POST /v2/models/identity/infer HTTP/1.1\r\nContent-Length: \
                     12\r\nInference-Header-Content-Length: 8\r\n\r\n";
        let head = request_head(text).unwrap().unwrap();
        assert_eq!(
            (head.head_bytes, head.body_bytes, head.json_bytes),
            (text.len(), 12, Some(8))
        );
        assert_eq!(request_head(&text[..text.len() - 1]), Ok(None));
        assert!(request_head(b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n").is_err());
        assert_eq!(
            response_head(b"HTTP/1.1 503 no\r\n\r\n")
                .unwrap()
                .unwrap()
                .status,
            503
        );
    }

    #[test]
    fn the_reply_announces_what_follows() {
        let mut reply = Vec::new();
        binary_reply_head(&mut reply, 64);
        let head = response_head(&reply).unwrap().unwrap();
        assert_eq!(head.head_bytes + head.body_bytes, reply.len() + 64);
        assert_eq!(head.json_bytes, Some(reply.len() - head.head_bytes));
        json_reply_head(&mut reply, "1,3", 10);
        let head = response_head(&reply).unwrap().unwrap();
        assert_eq!(head.head_bytes + head.body_bytes, reply.len() + 10);
    }

    #[test]
    fn the_raw_input_is_found_behind_other_fields() {
        let mut message = Vec::new();
        push_field(&mut message, 1, b"identity");
        push_field(&mut message, 7, &[9; 300]);
        let range = raw_input(&message).unwrap();
        assert_eq!(&message[range], &[9; 300]);
        assert_eq!(raw_input(&message[..100]), None);
        assert_eq!(
            raw_input(&[
                0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1
            ]),
            None
        );
        let framed = grpc_reply_head(300);
        let length = u32::from_be_bytes(framed[1..5].try_into().unwrap()) as usize;
        assert_eq!(length, framed.len() - 5 + 300);
    }
}
