//! Differences between listeners that serve inferences by HTTP: the place of the length of the JSON
//! in front of binary tensors.

use std::borrow::Cow;

use conch_engine::{Error, truncated};

use super::answer::{ContentType, HttpResponse};
use super::head::{self, RequestHead};
use crate::strtol::{self, ParseNumberError};

/// What speaks on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// In a header of its own, in requests and answers.
    Triton,
    /// In the media type, in requests and answers.
    SageMaker,
    /// In the media type of requests; answers are as Triton's.
    VertexAi,
}

impl Dialect {
    /// The media type of binary tensors behind JSON, up to the length of the JSON.
    pub(crate) fn media_type(self) -> Option<&'static str> {
        match self {
            Dialect::Triton => None,
            Dialect::SageMaker => {
                Some("application/vnd.sagemaker-triton.binary+json;json-header-size=")
            }
            Dialect::VertexAi => {
                Some("application/vnd.vertex-ai-triton.binary+json;json-header-size=")
            }
        }
    }

    /// What `head` says about the JSON's length; to be read by [`Dialect::parse`]. None: all of the
    /// body is JSON.
    ///
    /// # Errors
    /// The media type stands in the wrong place, or is not text.
    pub(super) fn length_text<'a>(self, head: &RequestHead<'a>) -> Result<Option<&'a str>, Error> {
        let Some(media_type) = self.media_type() else {
            return Ok(head.json_length);
        };
        let Some(value) = head.find("content-type") else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(value);
        match text.find(media_type) {
            None => Ok(None),
            Some(0) => match text {
                Cow::Borrowed(text) => Ok(text.get(media_type.len()..)),
                Cow::Owned(text) => Err(no_number(text.get(media_type.len()..).unwrap_or(""))),
            },
            Some(_) => Err(Error::invalid(format!(
                "expect MIME type for binary data starts with '{media_type}', got: {text}",
                text = truncated(&text)
            ))),
        }
    }

    /// The answer as this dialect has it.
    pub(super) fn dress(self, mut answer: HttpResponse) -> HttpResponse {
        if self == Dialect::SageMaker && answer.json_length.is_some() {
            answer.content_type = ContentType::SageMaker;
        }
        answer
    }

    /// How many bytes of a body of `content_length` are JSON.
    ///
    /// # Errors
    /// In upstream's words.
    pub(super) fn parse(self, text: Option<&str>, content_length: usize) -> Result<usize, Error> {
        if self == Dialect::Triton {
            return head::parse_json_length(text, content_length);
        }
        let Some(text) = text else {
            return Ok(content_length);
        };
        let value = strtol::parse(text).map_err(|why| match why {
            ParseNumberError::Missing => no_number(text),
            ParseNumberError::OutOfRange => Error::invalid(format!(
                "Unable to parse inference header size, value is out of range, got: {text}",
                text = truncated(&text)
            )),
        })?;
        head::json_length_within(value, content_length, text)
    }
}

fn no_number(text: &str) -> Error {
    Error::invalid(format!(
        "Unable to parse inference header size, got: {text}",
        text = truncated(&text)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_in_media_types() {
        let table: &[(&str, Result<usize, &str>)] = &[
            ("", Ok(10)),
            ("application/json", Ok(10)),
            ("{}7", Ok(7)),
            ("{}0", Ok(0)),
            ("{} 7; more", Ok(7)),
            (
                "{}11",
                Err("inference header size should be in range (0, 10), got: 11"),
            ),
            (
                "{}-1",
                Err("inference header size should be in range (0, 10), got: -1"),
            ),
            ("{}", Err("Unable to parse inference header size, got: ")),
            ("{}x", Err("Unable to parse inference header size, got: x")),
            (
                "{}\u{fffd}",
                Err("Unable to parse inference header size, got: \u{fffd}"),
            ),
            (
                "{}2147483648",
                Err(
                    "Unable to parse inference header size, value is out of range, got: 2147483648",
                ),
            ),
            (
                "x {}7",
                Err("expect MIME type for binary data starts with '{}', got: x {}7"),
            ),
        ];
        for dialect in [Dialect::SageMaker, Dialect::VertexAi] {
            let media_type = dialect.media_type().unwrap();
            for (value, expected) in table {
                let value = value.replace("{}", media_type);
                let text = match value.as_str() {
                    "" => "POST / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
                    value => format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Type: {value}\r\n\r\n"),
                };
                let head = head::parse(text.as_bytes()).unwrap();
                let outcome = dialect
                    .length_text(&head)
                    .and_then(|text| dialect.parse(text, 10))
                    .map_err(|error| error.message.into_owned());
                let expected = expected.map_err(|text| text.replace("{}", media_type));
                assert_eq!(outcome, expected, "{value}");
            }
        }
    }
}
