//! The head of a request: request line and headers, checked strictly enough that nobody in front of us can read it differently.

use conch_engine::Error;

use crate::leading::{self, NoNumber};

/// Headers in one request; each needs at least four bytes.
const HEADERS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Post,
    Delete,
    /// Anything else. No route takes HEAD, but its answers have no body.
    Head,
    Other,
}

/// How the body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
}

/// A checked head. Borrows from the bytes it was parsed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) method: Method,
    /// Without query.
    pub(crate) path: &'a str,
    pub(crate) framing: Framing,
    /// The client lets the connection be used again.
    pub(crate) keeps_alive: bool,
    pub(crate) is_version_1_0: bool,
    pub(crate) expects_continue: bool,
    /// Inference-Header-Content-Length as written.
    pub(crate) json_length: Option<&'a str>,
    /// The first Content-Encoding, as upstream takes it.
    pub(crate) content_encoding: Option<&'a str>,
    pub(crate) accept_encoding: &'a str,
    /// Everything from the first header on.
    lines: &'a [u8],
}

impl<'a> Head<'a> {
    /// The same, with another verb.
    pub(crate) fn with_method(&self, method: Method) -> Head<'a> {
        Head { method, ..*self }
    }

    /// The first header called `name`, whatever its case. Reads the headers again: for what few requests need.
    pub(crate) fn find(&self, name: &str) -> Option<&'a [u8]> {
        let mut found = None;
        self.each_header(|header, value| {
            if found.is_none() && header.eq_ignore_ascii_case(name) {
                found = Some(value);
            }
        });
        found
    }

    /// Every header, in order and as sent. Reads them again.
    pub(crate) fn each_header(&self, mut see: impl FnMut(&'a str, &'a [u8])) {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        // They have been parsed before, by the same rules.
        if let Ok(httparse::Status::Complete((_, headers))) =
            httparse::parse_headers(self.lines, &mut headers)
        {
            for header in headers {
                see(header.name, header.value);
            }
        }
    }
}

/// A head that cannot be accepted. The connection is closed after the answer, since where the next request begins is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) message: String,
}

fn bad(message: impl Into<String>) -> Refusal {
    Refusal {
        status: 400,
        message: message.into(),
    }
}

/// Looks for the end of a head in `bytes`, of which the first `seen` were looked at before. Returns the head's length.
///
/// # Errors
/// For a line that ends without a carriage return: what one parser takes for one line another takes for two.
pub(crate) fn find_end(bytes: &[u8], seen: usize) -> Result<Option<usize>, Refusal> {
    // The end is four bytes long, and the line feed at `seen - 1` was already looked at.
    for (index, byte) in bytes.iter().enumerate().skip(seen) {
        if *byte != b'\n' {
            continue;
        }
        let before = bytes.get(index.saturating_sub(3)..index).unwrap_or(&[]);
        match before {
            [.., b'\r', b'\n', b'\r'] => return Ok(Some(index + 1)),
            [.., b'\r'] => {}
            _ => {
                return Err(bad(
                    "a line of the request's head ends without a carriage return",
                ));
            }
        }
    }
    Ok(None)
}

/// Parses a complete head.
pub(crate) fn parse(bytes: &[u8]) -> Result<Head<'_>, Refusal> {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("the request's head is incomplete")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal {
                status: 431,
                message: "the request has too many headers".to_owned(),
            });
        }
        Err(error) => return Err(bad(format!("the request's head is malformed: {error}"))),
    }
    let is_version_1_0 = request.version == Some(0);
    let mut head = Head {
        method: match request.method {
            Some("GET") => Method::Get,
            Some("POST") => Method::Post,
            Some("DELETE") => Method::Delete,
            Some("HEAD") => Method::Head,
            _ => Method::Other,
        },
        path: path_of(request.path.unwrap_or("")),
        framing: Framing::Length(0),
        keeps_alive: !is_version_1_0,
        is_version_1_0,
        expects_continue: false,
        json_length: None,
        content_encoding: None,
        accept_encoding: "",
        lines: lines_of(bytes),
    };
    let mut length: Option<u64> = None;
    let mut is_chunked = false;
    for header in request.headers.iter() {
        let (name, value) = (header.name, header.value);
        match name.len() {
            14 if name.eq_ignore_ascii_case("content-length") => {
                if length.is_some() {
                    return Err(bad("the request has more than one Content-Length"));
                }
                length = Some(parse_length(value)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                if is_chunked || !value.eq_ignore_ascii_case(b"chunked") || is_version_1_0 {
                    return Err(bad("the request's Transfer-Encoding is not supported"));
                }
                is_chunked = true;
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    if option.eq_ignore_ascii_case(b"close") {
                        head.keeps_alive = false;
                    } else if option.eq_ignore_ascii_case(b"keep-alive") {
                        head.keeps_alive = true;
                    }
                }
            }
            6 if name.eq_ignore_ascii_case("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Refusal {
                        status: 417,
                        message: "the request's Expect is not supported".to_owned(),
                    });
                }
                head.expects_continue = !is_version_1_0;
            }
            31 if name.eq_ignore_ascii_case("inference-header-content-length") => {
                head.json_length.get_or_insert(text_of(value)?);
            }
            16 if name.eq_ignore_ascii_case("content-encoding")
                && head.content_encoding.is_none() =>
            {
                head.content_encoding = Some(text_of(value)?);
            }
            15 if name.eq_ignore_ascii_case("accept-encoding")
                && head.accept_encoding.is_empty() =>
            {
                // What is no text is nothing that we know.
                head.accept_encoding = std::str::from_utf8(value).unwrap_or("");
            }
            _ => {}
        }
    }
    head.framing = match (length, is_chunked) {
        (Some(_), true) => {
            return Err(bad(
                "the request has both Content-Length and Transfer-Encoding",
            ));
        }
        (None, true) => Framing::Chunked,
        (length, false) => Framing::Length(length.unwrap_or(0)),
    };
    Ok(head)
}

/// What follows the request line, which ends with the first line feed behind some character.
fn lines_of(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
    let line = start.and_then(|start| bytes.get(start..)).unwrap_or(&[]);
    let end = line.iter().position(|byte| *byte == b'\n');
    end.and_then(|end| line.get(end + 1..)).unwrap_or(&[])
}

fn text_of(value: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(value).map_err(|_| bad("a header of the request is not valid UTF-8"))
}

/// The path of a request target, which may be written with scheme and host, and have a query.
fn path_of(target: &str) -> &str {
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest
            .find('/')
            .and_then(|slash| rest.get(slash..))
            .unwrap_or("/"),
        None => target,
    };
    path.split(['?', '#']).next().unwrap_or("")
}

/// Content-Length: digits only, and within the 32 bits that upstream accepts.
fn parse_length(value: &[u8]) -> Result<u64, Refusal> {
    let text = text_of(value)?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad(format!("Unable to parse Content-Length, got: {text}")));
    }
    match text.parse::<u64>() {
        Ok(length) if length <= i32::MAX as u64 => Ok(length),
        _ => Err(bad(out_of_range("Content-Length", text))),
    }
}

fn out_of_range(header: &str, text: &str) -> String {
    format!(
        "Unable to parse {header}, value is out of range [ {}, {} ], got: {text}",
        i32::MIN,
        i32::MAX
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
    let value = leading::number(text).map_err(|why| {
        Error::invalid(match why {
            NoNumber::Missing => format!("Unable to parse {HEADER}, got: {text}"),
            NoNumber::OutOfRange => out_of_range(HEADER, text),
        })
    })?;
    json_length_within(value, content_length, text)
}

/// `value` as a length of JSON, if the body is that long; `text` is what the client wrote.
pub(super) fn json_length_within(
    value: i32,
    content_length: usize,
    text: &str,
) -> Result<usize, Error> {
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= content_length)
        .ok_or_else(|| {
            Error::invalid(format!(
                "inference header size should be in range (0, {content_length}), got: {text}"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parts<'a> = (Method, &'a str, Framing, bool);

    /// A refusal is its status and the end of its message.
    fn check(text: &str, expected: Result<Parts<'_>, (u16, &str)>) {
        let whole = match find_end(text.as_bytes(), 0) {
            Ok(end) => {
                assert_eq!(end, Some(text.len()), "{text:?}");
                parse(text.as_bytes())
            }
            Err(refusal) => Err(refusal),
        };
        match (&whole, expected) {
            (Ok(head), expected) => {
                let parts = (head.method, head.path, head.framing, head.keeps_alive);
                assert_eq!(Ok(parts), expected, "{text:?}");
            }
            (Err(refusal), Err((status, message))) => {
                assert_eq!(refusal.status, status, "{text:?}");
                assert!(
                    refusal.message.ends_with(message),
                    "{text:?}: {}",
                    refusal.message
                );
            }
            (Err(refusal), Ok(_)) => panic!("{text:?}: {}", refusal.message),
        }
    }

    #[test]
    fn heads() {
        let none = Framing::Length(0);
        for (text, expected) in [
            (
                "GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
                Ok((Method::Get, "/v2", none, true)),
            ),
            (
                "GET /v2?a=b HTTP/1.1\r\n\r\n",
                Ok((Method::Get, "/v2", none, true)),
            ),
            (
                "GET http://host:1/v2 HTTP/1.1\r\n\r\n",
                Ok((Method::Get, "/v2", none, true)),
            ),
            (
                "GET / HTTP/1.0\r\n\r\n",
                Ok((Method::Get, "/", none, false)),
            ),
            (
                "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
                Ok((Method::Get, "/", none, true)),
            ),
            (
                "GET / HTTP/1.1\r\nConnection: te, close\r\n\r\n",
                Ok((Method::Get, "/", none, false)),
            ),
            (
                "POST / HTTP/1.1\r\ncontent-LENGTH: 12\r\n\r\n",
                Ok((Method::Post, "/", Framing::Length(12), true)),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n",
                Ok((Method::Post, "/", Framing::Chunked, true)),
            ),
            (
                "HEAD / HTTP/1.1\r\n\r\n",
                Ok((Method::Head, "/", none, true)),
            ),
            (
                "DELETE / HTTP/1.1\r\n\r\n",
                Ok((Method::Delete, "/", none, true)),
            ),
            // What different parsers might take for different requests.
            (
                "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                Err((
                    400,
                    "the request has both Content-Length and Transfer-Encoding",
                )),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
                Err((
                    400,
                    "the request has both Content-Length and Transfer-Encoding",
                )),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
                Err((400, "the request has more than one Content-Length")),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
                Err((400, "Unable to parse Content-Length, got: 5, 5")),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
                Err((400, "Unable to parse Content-Length, got: +5")),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                Err((400, "Unable to parse Content-Length, got: -1")),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n",
                Err((400, "Unable to parse Content-Length, got: 0x5")),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: \r\n\r\n",
                Err((400, "Unable to parse Content-Length, got: ")),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 2147483648\r\n\r\n",
                Err((
                    400,
                    "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: 2147483648",
                )),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 9223372036854775808\r\n\r\n",
                Err((
                    400,
                    "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: 9223372036854775808",
                )),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
                Err((400, "the request's Transfer-Encoding is not supported")),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                Err((400, "the request's Transfer-Encoding is not supported")),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                Err((400, "the request's Transfer-Encoding is not supported")),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
                Err((400, "the request's head is malformed: invalid header name")),
            ),
            (
                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
                Err((400, "the request's Transfer-Encoding is not supported")),
            ),
            (
                "POST / HTTP/1.1\r\n Transfer-Encoding: chunked\r\n\r\n",
                Err((400, "the request's head is malformed: invalid header name")),
            ),
            (
                "POST / HTTP/1.1\r\nA: b\nContent-Length: 5\r\n\r\n",
                Err((
                    400,
                    "a line of the request's head ends without a carriage return",
                )),
            ),
            (
                "POST / HTTP/1.1\n\n",
                Err((
                    400,
                    "a line of the request's head ends without a carriage return",
                )),
            ),
            (
                "GET / HTTP/2.0\r\n\r\n",
                Err((400, "the request's head is malformed: invalid HTTP version")),
            ),
            (
                "GET /\0 HTTP/1.1\r\n\r\n",
                Err((400, "the request's head is malformed: invalid token")),
            ),
            (
                "GET / HTTP/1.1\r\nExpect: miracles\r\n\r\n",
                Err((417, "the request's Expect is not supported")),
            ),
        ] {
            check(text, expected);
        }
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(HEADERS_MAX + 1)
        );
        check(&many, Err((431, "the request has too many headers")));
        let incomplete = parse(b"GET / HTTP/1.1\r\n").unwrap_err();
        assert_eq!(incomplete, bad("the request's head is incomplete"));
    }

    #[test]
    fn the_first_encoding_counts() {
        for (headers, expected) in [
            ("", None),
            ("Content-Encoding: gzip\r\n", Some("gzip")),
            (
                "Content-Encoding: identity\r\ncontent-encoding: gzip\r\n",
                Some("identity"),
            ),
            ("Content-Encoding:\r\nContent-Encoding: gzip\r\n", Some("")),
        ] {
            let text = format!("POST / HTTP/1.1\r\n{headers}\r\n");
            let head = parse(text.as_bytes()).unwrap();
            assert_eq!(head.content_encoding, expected, "{headers:?}");
        }
    }

    #[test]
    fn the_end_is_found_wherever_the_text_is_cut() {
        let text = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\nrest";
        let end = text.len() - 4;
        for cut in 0..text.len() {
            let first = find_end(&text[..cut], 0).unwrap();
            assert_eq!(first, (cut >= end).then_some(end), "{cut}");
            assert_eq!(
                find_end(text, cut.min(end - 1)).unwrap(),
                Some(end),
                "{cut}"
            );
        }
    }

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
            (Some("x"), Err("Unable to parse Inference-Header-Content-Length, got: x".to_owned())),
            (Some(""), Err("Unable to parse Inference-Header-Content-Length, got: ".to_owned())),
            (
                Some("2147483648"),
                Err("Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: 2147483648".to_owned()),
            ),
        ] {
            let outcome = parse_json_length(text, 10).map_err(|error| error.message.into_owned());
            assert_eq!(outcome, expected, "{text:?}");
        }
    }
}
