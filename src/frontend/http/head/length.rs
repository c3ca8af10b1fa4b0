//! The lengths that a head tells: of the body, and of the JSON in front of it.

use conch_engine::{Error, truncated};

use super::{HeadRefusal, bad, text_of};
use crate::strtol::{self, ParseNumberError};

/// Content-Length: digits only. How much a request may have is up to what it asks for.
#[inline]
pub(super) fn parse_length(value: &[u8]) -> Result<u64, HeadRefusal> {
    let text = text_of(value)?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad(format!(
            "Unable to parse Content-Length, got: {text}",
            text = truncated(&text)
        )));
    }
    text.parse::<u64>()
        .map_err(|_| bad(out_of_range("Content-Length", text)))
}

/// What upstream says of an inference whose body is longer than its 32 bits count.
pub(crate) fn length_refusal(length: u64) -> Error {
    Error::invalid(out_of_range("Content-Length", &length.to_string()))
}

fn out_of_range(header: &str, text: &str) -> String {
    format!(
        "Unable to parse {header}, value is out of range [ {}, {} ], got: {text}",
        i32::MIN,
        i32::MAX,
        text = truncated(&text)
    )
}

/// How many bytes of a body of `content_length` bytes are JSON; all of them without the header.
///
/// # Errors
/// In upstream's words. Like upstream's `stoi`, digits may be followed by anything.
pub(crate) fn parse_json_length(text: Option<&str>, content_length: usize) -> Result<usize, Error> {
    const HEADER: &str = "Inference-Header-Content-Length";
    let Some(text) = text else {
        return Ok(content_length);
    };
    let value = strtol::parse(text).map_err(|why| {
        Error::invalid(match why {
            ParseNumberError::Missing => format!(
                "Unable to parse {HEADER}, got: {text}",
                text = truncated(&text)
            ),
            ParseNumberError::OutOfRange => out_of_range(HEADER, text),
        })
    })?;
    json_length_within(value, content_length, text)
}

/// `value` as a length of JSON, if the body is that long; `text` is what the client wrote.
pub(in crate::http) fn json_length_within(
    value: i32,
    content_length: usize,
    text: &str,
) -> Result<usize, Error> {
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= content_length)
        .ok_or_else(|| {
            Error::invalid(format!(
                "inference header size should be in range (0, {content_length}), got: {text}",
                text = truncated(&text)
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lengths() {
        let range =
            |text: &str| format!("inference header size should be in range (0, 10), got: {text}");
        for (text, expected) in [
            (None, Ok(10)),
            (Some("0"), Ok(0)),
            (Some("10"), Ok(10)),
            (Some(" +7x"), Ok(7)),
            (Some("11"), Err(range("11"))),
            (Some("-1"), Err(range("-1"))),
            (
                Some("x"),
                Err("Unable to parse Inference-Header-Content-Length, got: x".to_owned()),
            ),
            (
                Some(""),
                Err("Unable to parse Inference-Header-Content-Length, got: ".to_owned()),
            ),
            (
                Some("2147483648"),
                Err(
                    "Unable to parse Inference-Header-Content-Length, value is out of range [ \
                     -2147483648, 2147483647 ], got: 2147483648"
                        .to_owned(),
                ),
            ),
        ] {
            let outcome = parse_json_length(text, 10).map_err(|error| error.message.into_owned());
            assert_eq!(outcome, expected, "{text:?}");
        }
    }
}
