//! What is read and what is answered.

/// A reply as conch sends it to a request for 16 numbers.
pub(crate) const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
    Inference-Header-Content-Length: 144\r\nContent-Length: 208\r\n\r\n\
    {\"model_name\":\"identity\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\
    \"datatype\":\"FP32\",\"shape\":[16],\"parameters\":{\"binary_data_size\":64}}]}\
    0000000000000000000000000000000000000000000000000000000000000000";

/// How long the first request in `bytes` is; none if it is not whole.
pub(crate) fn whole_request(bytes: &[u8]) -> Option<usize> {
    const LENGTH: &str = "\r\nContent-Length: ";
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let length = &text[text.find(LENGTH)? + LENGTH.len()..];
    let length: usize = length.split("\r\n").next()?.parse().ok()?;
    (bytes.len() >= head + length).then_some(head + length)
}
