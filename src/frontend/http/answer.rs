//! An answer and its head.

use conch_engine::{Code, Error};
use conch_memory::ByteView;
use smallvec::SmallVec;

use super::json::write;
use crate::coding::ContentCoding;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentType {
    /// What upstream's library puts where its handlers set nothing.
    Plain,
    Json,
    Octets,
    /// Of the SageMaker listener: JSON and binary tensors, with the length of the JSON in the name.
    SageMaker,
    /// Of the metrics listener.
    Metrics,
    /// Server-sent events.
    Events,
    Html,
}

impl ContentType {
    fn name(self) -> &'static [u8] {
        match self {
            ContentType::Plain => b"text/plain",
            ContentType::Json => b"application/json",
            ContentType::SageMaker => {
                b"application/vnd.sagemaker-triton.binary+json;json-header-size="
            }
            ContentType::Octets => b"application/octet-stream",
            ContentType::Metrics => b"text/plain; charset=utf-8",
            ContentType::Events => b"text/event-stream; charset=utf-8",
            ContentType::Html => b"text/html; charset=utf-8",
        }
    }
}

/// How a client finds the end of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BodyDelimiter {
    #[default]
    Length,
    Chunked,
    /// The connection's end is the body's.
    Close,
}

/// The first bytes of every answer to a request of version 1.0 or 1.1.
pub(crate) fn version_text(is_version_1_0: bool) -> &'static [u8] {
    match is_version_1_0 {
        true => b"HTTP/1.0 ",
        false => b"HTTP/1.1 ",
    }
}

/// What of an answer's head depends on the connection and on the request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseHeadOptions<'a> {
    /// The request's version, which is the answer's.
    pub(crate) is_version_1_0: bool,
    /// The client has the version of this answer already.
    pub(crate) version_is_sent: bool,
    pub(crate) connection: Option<&'static str>,
    pub(crate) delimiting: BodyDelimiter,
    /// Scripts of this origin may read the answer.
    pub(crate) allowed_origin: Option<&'a str>,
}

/// Binary outputs of an answer. Few models have more; answers are moved several times.
pub(crate) type AnswerParts = SmallVec<[ByteView; 2]>;

/// One answer, without what depends on the connection.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) content_type: ContentType,
    /// Inference-Header-Content-Length.
    pub(crate) json_length: Option<usize>,
    /// Content-Encoding of body and parts.
    pub(crate) encoding: Option<ContentCoding>,
    /// Tell the client which encodings there are.
    pub(crate) names_encodings: bool,
    pub(crate) body: Vec<u8>,
    /// Follow the body, by reference.
    pub(crate) parts: AnswerParts,
    /// Further headers, each with a line end in front of it. Few answers have any.
    pub(crate) more_headers: Option<Box<str>>,
}

impl HttpResponse {
    pub(crate) fn new(status: u16, content_type: ContentType, body: Vec<u8>) -> HttpResponse {
        HttpResponse {
            status,
            content_type,
            json_length: None,
            encoding: None,
            names_encodings: false,
            body,
            parts: SmallVec::new(),
            more_headers: None,
        }
    }

    pub(crate) fn json(body: Vec<u8>) -> HttpResponse {
        HttpResponse::new(200, ContentType::Json, body)
    }

    pub(crate) fn empty(status: u16) -> HttpResponse {
        HttpResponse::new(status, ContentType::Plain, Vec::new())
    }

    /// `{"error":"<message>"}`.
    pub(crate) fn failure(status: u16, content_type: ContentType, message: &str) -> HttpResponse {
        let mut body = Vec::with_capacity(message.len() + 16);
        body.extend_from_slice(b"{\"error\":");
        write::string(&mut body, message.as_bytes());
        body.push(b'}');
        HttpResponse::new(status, content_type, body)
    }

    pub(crate) fn error(error: &Error, content_type: ContentType) -> HttpResponse {
        HttpResponse::failure(status_of(error.code), content_type, &error.message)
    }

    /// Bytes of body and parts.
    pub(crate) fn length(&self) -> usize {
        self.parts
            .iter()
            .fold(self.body.len(), |sum, part| sum + part.len())
    }

    /// Appends status line and headers.
    pub(crate) fn write_head(&self, target: &mut Vec<u8>, options: ResponseHeadOptions<'_>) {
        if !options.version_is_sent {
            target.extend_from_slice(version_text(options.is_version_1_0));
        }
        write::unsigned(target, u64::from(self.status));
        target.push(b' ');
        target.extend_from_slice(reason(self.status).as_bytes());
        if let Some(connection) = options.connection {
            target.extend_from_slice(b"\r\nConnection: ");
            target.extend_from_slice(connection.as_bytes());
        }
        target.extend_from_slice(b"\r\nContent-Type: ");
        target.extend_from_slice(self.content_type.name());
        if let Some(json_length) = self.json_length {
            if self.content_type != ContentType::SageMaker {
                target.extend_from_slice(b"\r\nInference-Header-Content-Length: ");
            }
            write::unsigned(target, json_length as u64);
        }
        if let Some(encoding) = self.encoding {
            target.extend_from_slice(b"\r\nContent-Encoding: ");
            target.extend_from_slice(encoding.name().as_bytes());
        }
        if self.names_encodings {
            target.extend_from_slice(b"\r\nAccept-Encoding: gzip, deflate");
        }
        if self.status == 429 {
            target.extend_from_slice(b"\r\nRetry-After: ");
            target.extend_from_slice(RETRY_AFTER_SECS);
        }
        if let Some(more_headers) = &self.more_headers {
            target.extend_from_slice(more_headers.as_bytes());
        }
        if let Some(origin) = options.allowed_origin {
            write_origin(target, origin);
        }
        match options.delimiting {
            BodyDelimiter::Length => {
                target.extend_from_slice(b"\r\nContent-Length: ");
                write::unsigned(target, self.length() as u64);
            }
            BodyDelimiter::Chunked => {
                target.extend_from_slice(b"\r\nTransfer-Encoding: chunked");
            }
            BodyDelimiter::Close => {}
        }
        target.extend_from_slice(b"\r\n\r\n");
    }
}

/// What is exhausted is there again as soon as some request is over; the header knows whole
/// seconds, and 0 would invite everyone at once.
const RETRY_AFTER_SECS: &[u8] = b"1";

/// Upstream's mapping of codes.
pub(crate) fn status_of(code: Code) -> u16 {
    match code {
        Code::Internal => 500,
        Code::NotFound => 404,
        Code::Exhausted => 429,
        Code::OutOfMemory => 503,
        Code::Unavailable => 503,
        Code::Unsupported => 501,
        Code::Unknown | Code::InvalidArg | Code::AlreadyExists | Code::Cancelled => 400,
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Payload Too Large",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        507 => "Insufficient Storage",
        _ => "Unknown",
    }
}

/// Appends the headers by which a browser lets scripts of `origin` read the answer.
fn write_origin(target: &mut Vec<u8>, origin: &str) {
    target.extend_from_slice(b"\r\nAccess-Control-Allow-Origin: ");
    target.extend_from_slice(origin.as_bytes());
    target.extend_from_slice(b"\r\nVary: Origin\r\nAccess-Control-Expose-Headers: *");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_errors() {
        let mut answer = HttpResponse::error(&Error::not_found("no \"x\""), ContentType::Json);
        answer.json_length = Some(7);
        let mut text = Vec::new();
        let options = ResponseHeadOptions {
            connection: Some("close"),
            ..ResponseHeadOptions::default()
        };
        answer.write_head(&mut text, options);
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Inference-Header-Content-Length: 7\r\nContent-Length: 20\r\n\r\n"
        );
        assert_eq!(answer.body, br#"{"error":"no \"x\""}"#);
        let mut text = Vec::new();
        HttpResponse::error(&Error::exhausted("full"), ContentType::Json)
            .write_head(&mut text, ResponseHeadOptions::default());
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\n\
             Content-Length: 16\r\n\r\n"
        );
        let mut text = Vec::new();
        let options = ResponseHeadOptions {
            is_version_1_0: true,
            allowed_origin: Some("http://a"),
            ..ResponseHeadOptions::default()
        };
        HttpResponse::empty(200).write_head(&mut text, options);
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nAccess-Control-Allow-Origin: \
             http://a\r\nVary: Origin\r\nAccess-Control-Expose-Headers: *\r\nContent-Length: \
             0\r\n\r\n"
        );
        let mut text = Vec::new();
        let options = ResponseHeadOptions {
            version_is_sent: true,
            ..ResponseHeadOptions::default()
        };
        HttpResponse::empty(200).write_head(&mut text, options);
        assert!(text.starts_with(b"200 OK\r\n"));
        for (code, status) in [
            (Code::Unknown, 400),
            (Code::Internal, 500),
            (Code::NotFound, 404),
            (Code::InvalidArg, 400),
            (Code::Unavailable, 503),
            (Code::Unsupported, 501),
            (Code::AlreadyExists, 400),
            (Code::Cancelled, 400),
            (Code::Exhausted, 429),
            (Code::OutOfMemory, 503),
        ] {
            assert_eq!(status_of(code), status);
        }
    }
}
