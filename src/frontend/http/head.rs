//! The head of a request: request line and headers, checked strictly enough that nobody in front of
//! us can read it differently.

use conch_engine::{Error, truncated};
use conch_memory::OutOfMemory;

use crate::strtol::{self, ParseNumberError};

/// Headers in one request. Upstream has no bound of its own; here 64 KiB bound them as well.
const HEADERS_MAX: usize = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpMethod {
    Get,
    Post,
    Delete,
    /// Taken where health and metrics are asked for. Its answers have no body.
    Head,
    /// Asks what is allowed, for scripts of other origins.
    Options,
    Other,
}

impl HttpMethod {
    /// Whether nothing but an answer is wanted, be it without its body.
    pub(crate) fn is_read(self) -> bool {
        matches!(self, HttpMethod::Get | HttpMethod::Head)
    }
}

/// How the body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    Length(u64),
    Chunked,
}

/// A checked head. Borrows from the bytes it was parsed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: HttpMethod,
    /// Without query.
    pub(crate) path: &'a str,
    pub(crate) framing: BodyFraming,
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

impl<'a> RequestHead<'a> {
    /// The same, with another verb.
    pub(crate) fn with_method(&self, method: HttpMethod) -> RequestHead<'a> {
        RequestHead { method, ..*self }
    }

    /// The first header called `name`, whatever its case. Reads the headers again: for what few
    /// requests need.
    pub(crate) fn find(&self, name: &str) -> Option<&'a [u8]> {
        let mut found = None;
        self.each_header(|header, value| {
            if found.is_none() && header.eq_ignore_ascii_case(name) {
                found = Some(value.trim_ascii());
            }
        });
        found
    }

    /// Whether the client asks for JSON by name. Most take anything, which is no wish.
    pub(crate) fn wants_json(&self) -> bool {
        self.find("accept").is_some_and(|accept| {
            accept.split(|byte| *byte == b',').any(|range| {
                let name = range.split(|byte| *byte == b';').next();
                name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"application/json"))
            })
        })
    }

    /// Every header, in order, with its value as sent: without the spaces in front of it, with the
    /// blanks behind it. Reads them again.
    pub(crate) fn each_header(&self, mut see: impl FnMut(&'a str, &'a [u8])) {
        // They have been parsed before: a line has one name and one colon behind it, and no line
        // goes on in the next.
        for line in self.lines.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            let (name, value) = line.split_at(colon);
            let value = value.strip_prefix(b":").unwrap_or(value);
            let start = value.iter().position(|byte| *byte != b' ');
            let value = value.get(start.unwrap_or(value.len())..).unwrap_or(&[]);
            if let Ok(name) = std::str::from_utf8(name) {
                see(name, value);
            }
        }
    }
}

/// A head that cannot be accepted. The connection is closed after the answer, since where the next
/// request begins is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeadRefusal {
    pub(crate) status: u16,
    pub(crate) message: String,
}

impl From<OutOfMemory> for HeadRefusal {
    fn from(refused: OutOfMemory) -> HeadRefusal {
        HeadRefusal {
            status: 503,
            message: refused.to_string(),
        }
    }
}

fn bad(message: impl Into<String>) -> HeadRefusal {
    HeadRefusal {
        status: 400,
        message: message.into(),
    }
}

/// Looks for the end of a head in `bytes`, of which the first `seen` were looked at before. Returns
/// the head's length.
///
/// # Errors
/// For a line that ends without a carriage return: what one parser takes for one line another takes
/// for two.
pub(crate) fn find_end(bytes: &[u8], seen: usize) -> Result<Option<usize>, HeadRefusal> {
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

/// Makes version 1.1 of a later HTTP/1 in the request line of a complete head: who speaks HTTP/1.2
/// is told by the answer that we speak 1.1.
pub(crate) fn settle_version(head: &mut [u8]) {
    let line_end = head.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let line = head.get_mut(..line_end).unwrap_or(&mut []);
    if let [
        ..,
        b' ',
        b'H',
        b'T',
        b'T',
        b'P',
        b'/',
        b'1',
        b'.',
        minor @ b'2'..=b'9',
        b'\r',
    ] = line
    {
        *minor = b'1';
    }
}

/// Whether a connection begins as TLS does: by a record of type 22, which no request begins with.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0x16)
}

/// Parses a complete head.
pub(crate) fn parse(bytes: &[u8]) -> Result<RequestHead<'_>, HeadRefusal> {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("the request's head is incomplete")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(HeadRefusal {
                status: 431,
                message: "the request has too many headers".to_owned(),
            });
        }
        Err(error) => return Err(bad(format!("the request's head is malformed: {error}"))),
    }
    let is_version_1_0 = request.version == Some(0);
    let mut head = RequestHead {
        method: match request.method {
            Some("GET") => HttpMethod::Get,
            Some("POST") => HttpMethod::Post,
            Some("DELETE") => HttpMethod::Delete,
            Some("HEAD") => HttpMethod::Head,
            Some("OPTIONS") => HttpMethod::Options,
            _ => HttpMethod::Other,
        },
        path: path_of(request.path.unwrap_or("")),
        framing: BodyFraming::Length(0),
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
    let mut has_host = false;
    for header in request.headers.iter() {
        let (name, value) = (header.name, header.value);
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => {
                if has_host {
                    return Err(bad("the request has more than one Host"));
                }
                has_host = true;
            }
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
                    return Err(HeadRefusal {
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
    if !has_host && !is_version_1_0 {
        return Err(bad("the request has no Host"));
    }
    head.framing = match (length, is_chunked) {
        (Some(_), true) => {
            // Some clients say both. The chunks count; whoever stood in front of us may have
            // counted otherwise, so nothing is read behind them.
            head.keeps_alive = false;
            BodyFraming::Chunked
        }
        (None, true) => BodyFraming::Chunked,
        (length, false) => BodyFraming::Length(length.unwrap_or(0)),
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

fn text_of(value: &[u8]) -> Result<&str, HeadRefusal> {
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

/// Content-Length: digits only. How much a request may have is up to what it asks for.
fn parse_length(value: &[u8]) -> Result<u64, HeadRefusal> {
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
                "inference header size should be in range (0, {content_length}), got: {text}",
                text = truncated(&text)
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parts<'a> = (HttpMethod, &'a str, BodyFraming, bool);

    /// A refusal is its status and the end of its message. Requests of version 1.1 get the Host
    /// that they need.
    fn check(text: &str, expected: Result<Parts<'_>, (u16, &str)>) {
        let text = &text.replacen(" HTTP/1.1\r\n", " HTTP/1.1\r\nHost: x\r\n", 1);
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
        let none = BodyFraming::Length(0);
        for (text, expected) in [
            (
                "GET /v2 HTTP/1.1\r\nA: x\r\n\r\n",
                Ok((HttpMethod::Get, "/v2", none, true)),
            ),
            (
                "GET /v2?a=b HTTP/1.1\r\n\r\n",
                Ok((HttpMethod::Get, "/v2", none, true)),
            ),
            (
                "GET http://host:1/v2 HTTP/1.1\r\n\r\n",
                Ok((HttpMethod::Get, "/v2", none, true)),
            ),
            (
                "GET / HTTP/1.0\r\n\r\n",
                Ok((HttpMethod::Get, "/", none, false)),
            ),
            (
                "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
                Ok((HttpMethod::Get, "/", none, true)),
            ),
            (
                "GET / HTTP/1.1\r\nConnection: te, close\r\n\r\n",
                Ok((HttpMethod::Get, "/", none, false)),
            ),
            (
                "POST / HTTP/1.1\r\ncontent-LENGTH: 12\r\n\r\n",
                Ok((HttpMethod::Post, "/", BodyFraming::Length(12), true)),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n",
                Ok((HttpMethod::Post, "/", BodyFraming::Chunked, true)),
            ),
            (
                "HEAD / HTTP/1.1\r\n\r\n",
                Ok((HttpMethod::Head, "/", none, true)),
            ),
            (
                "DELETE / HTTP/1.1\r\n\r\n",
                Ok((HttpMethod::Delete, "/", none, true)),
            ),
            // What different parsers might take for different requests.
            (
                "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                Ok((HttpMethod::Post, "/", BodyFraming::Chunked, false)),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n",
                Ok((HttpMethod::Post, "/", BodyFraming::Chunked, false)),
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
                Ok((
                    HttpMethod::Post,
                    "/",
                    BodyFraming::Length(2_147_483_648),
                    true,
                )),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 92233720368547758080\r\n\r\n",
                Err((
                    400,
                    "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: 92233720368547758080",
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
        let many = |count| format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count));
        // One is the Host.
        check(
            &many(HEADERS_MAX - 1),
            Ok((HttpMethod::Get, "/", none, true)),
        );
        check(
            &many(HEADERS_MAX),
            Err((431, "the request has too many headers")),
        );
        let incomplete = parse(b"GET / HTTP/1.1\r\n").unwrap_err();
        assert_eq!(incomplete, bad("the request's head is incomplete"));
    }

    #[test]
    fn a_request_has_one_host() {
        for (hosts, expected) in [
            ("", Err("the request has no Host")),
            ("Host:\r\n", Ok(())),
            ("hOST: a\r\n", Ok(())),
            (
                "Host: a\r\nhost: a\r\n",
                Err("the request has more than one Host"),
            ),
        ] {
            for version in ["1.0", "1.1"] {
                let text = format!("GET / HTTP/{version}\r\n{hosts}\r\n");
                let outcome = parse(text.as_bytes()).map(|_| ());
                let expected = match (version, hosts) {
                    ("1.0", "") => Ok(()),
                    _ => expected.map_err(bad),
                };
                assert_eq!(outcome, expected, "{text:?}");
            }
        }
    }

    #[test]
    fn later_versions_of_http_1_are_taken_for_the_one_that_we_speak() {
        for (version, expected) in [
            ("1.1", "1.1"),
            ("1.2", "1.1"),
            ("1.9", "1.1"),
            ("1.0", "1.0"),
            ("2.0", "2.0"),
            ("1.10", "1.10"),
            ("1.", "1."),
        ] {
            let mut text =
                format!("GET /HTTP/1.2 HTTP/{version}\r\nA: HTTP/1.2\r\n\r\n").into_bytes();
            settle_version(&mut text);
            let expected = format!("GET /HTTP/1.2 HTTP/{expected}\r\nA: HTTP/1.2\r\n\r\n");
            assert_eq!(text, expected.as_bytes());
        }
        settle_version(&mut []);
        settle_version(&mut b"HTTP/1.2\r".to_vec());
    }

    #[test]
    fn headers_are_shown_as_they_were_sent() {
        let head =
            parse(b"GET / HTTP/1.1\r\nHost: x\r\nA:  \t1 2 \t \r\nB:\r\nC: a:b\r\n\r\n").unwrap();
        let mut seen = Vec::new();
        head.each_header(|name, value| seen.push((name, value)));
        let expected: [(&str, &[u8]); 4] = [
            ("Host", b"x"),
            ("A", b"\t1 2 \t "),
            ("B", b""),
            ("C", b"a:b"),
        ];
        assert_eq!(seen, expected);
        assert_eq!(head.find("a"), Some(&b"1 2"[..]));
        assert_eq!(head.find("d"), None);
    }

    #[test]
    fn json_is_asked_for_by_name() {
        for (accept, expected) in [
            ("", false),
            ("*/*", false),
            ("application/*", false),
            ("application/json", true),
            ("text/html, Application/JSON;q=0.9", true),
            ("application/jsonx", false),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
            assert_eq!(
                parse(text.as_bytes()).unwrap().wants_json(),
                expected,
                "{accept}"
            );
        }
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
            let text = format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
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
