//! Parsing a head, strictly: what two parsers might take for two different requests is refused.

use super::length::parse_length;
use super::{BodyFraming, HeadRefusal, HttpMethod, RequestHead, bad, text_of};

/// Headers in one request. Upstream has no bound of its own; here 64 KiB bound them as well.
const HEADERS_MAX: usize = 500;

/// Parses a complete head.
pub(crate) fn parse(bytes: &[u8]) -> Result<RequestHead<'_>, HeadRefusal> {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("the request's head is incomplete")),
        Err(error) => return Err(malformed(error)),
    }
    let mut fields = HeadFields::new(&request, bytes);
    for header in request.headers.iter() {
        fields.read(header.name, header.value)?;
    }
    fields.finish()
}

#[cold]
fn malformed(error: httparse::Error) -> HeadRefusal {
    if error == httparse::Error::TooManyHeaders {
        return HeadRefusal {
            status: 431,
            message: "the request has too many headers".to_owned(),
        };
    }
    bad(format!("the request's head is malformed: {error}"))
}

/// A head whose headers are read one after the other.
struct HeadFields<'a> {
    head: RequestHead<'a>,
    length: Option<u64>,
    is_chunked: bool,
    has_host: bool,
}

impl<'a> HeadFields<'a> {
    /// The request line alone.
    #[inline]
    fn new(request: &httparse::Request<'_, 'a>, bytes: &'a [u8]) -> HeadFields<'a> {
        let is_version_1_0 = request.version == Some(0);
        let head = RequestHead {
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
            trace_parent: None,
            lines: lines_of(bytes),
        };
        HeadFields {
            head,
            length: None,
            is_chunked: false,
            has_host: false,
        }
    }

    #[inline]
    fn read(&mut self, name: &str, value: &'a [u8]) -> Result<(), HeadRefusal> {
        let head = &mut self.head;
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => {
                if self.has_host {
                    return Err(bad("the request has more than one Host"));
                }
                self.has_host = true;
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                if self.length.is_some() {
                    return Err(bad("the request has more than one Content-Length"));
                }
                self.length = Some(parse_length(value)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                let is_supported = value.eq_ignore_ascii_case(b"chunked");
                if self.is_chunked || !is_supported || head.is_version_1_0 {
                    return Err(bad("the request's Transfer-Encoding is not supported"));
                }
                self.is_chunked = true;
            }
            10 if name.eq_ignore_ascii_case("connection") => self.read_connection(value),
            6 if name.eq_ignore_ascii_case("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(HeadRefusal {
                        status: 417,
                        message: "the request's Expect is not supported".to_owned(),
                    });
                }
                head.expects_continue = !head.is_version_1_0;
            }
            11 if head.trace_parent.is_none() && name.eq_ignore_ascii_case("traceparent") => {
                head.trace_parent = Some(value.trim_ascii());
            }
            31 if name.eq_ignore_ascii_case("inference-header-content-length") => {
                head.json_length.get_or_insert(text_of(value)?);
            }
            16 if head.content_encoding.is_none()
                && name.eq_ignore_ascii_case("content-encoding") =>
            {
                head.content_encoding = Some(text_of(value)?);
            }
            15 if head.accept_encoding.is_empty()
                && name.eq_ignore_ascii_case("accept-encoding") =>
            {
                // What is no text is nothing that we know.
                head.accept_encoding = std::str::from_utf8(value).unwrap_or("");
            }
            _ => {}
        }
        Ok(())
    }

    fn read_connection(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"close") {
                self.head.keeps_alive = false;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.head.keeps_alive = true;
            }
        }
    }

    #[inline]
    fn finish(self) -> Result<RequestHead<'a>, HeadRefusal> {
        let mut head = self.head;
        if !self.has_host && !head.is_version_1_0 {
            return Err(bad("the request has no Host"));
        }
        head.framing = match (self.length, self.is_chunked) {
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
}

/// What follows the request line, which ends with the first line feed behind some character.
fn lines_of(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
    let line = start.and_then(|start| bytes.get(start..)).unwrap_or(&[]);
    let end = memchr::memchr(b'\n', line);
    end.and_then(|end| line.get(end + 1..)).unwrap_or(&[])
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
    let end = memchr::memchr2(b'?', b'#', path.as_bytes());
    path.get(..end.unwrap_or(path.len())).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::super::find_end;
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
    fn request_lines_and_connections() {
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
                "HEAD / HTTP/1.1\r\n\r\n",
                Ok((HttpMethod::Head, "/", none, true)),
            ),
            (
                "DELETE / HTTP/1.1\r\n\r\n",
                Ok((HttpMethod::Delete, "/", none, true)),
            ),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn lengths_are_exact() {
        for (text, expected) in [
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
                    "Unable to parse Content-Length, value is out of range [ -2147483648, \
                     2147483647 ], got: 92233720368547758080",
                )),
            ),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn chunks_are_all_or_nothing() {
        for (text, expected) in [
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n",
                Ok((HttpMethod::Post, "/", BodyFraming::Chunked, true)),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                Ok((HttpMethod::Post, "/", BodyFraming::Chunked, false)),
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: \
                 keep-alive\r\nContent-Length: 5\r\n\r\n",
                Ok((HttpMethod::Post, "/", BodyFraming::Chunked, false)),
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
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: \
                 chunked\r\n\r\n",
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
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn malformed_heads_are_refused() {
        for (text, expected) in [
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
    }

    #[test]
    fn headers_are_bounded() {
        let many = |count| format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count));
        // One is the Host.
        check(
            &many(HEADERS_MAX - 1),
            Ok((HttpMethod::Get, "/", BodyFraming::Length(0), true)),
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
    fn the_first_trace_counts() {
        for (headers, expected) in [
            ("", None),
            ("TraceParent: a b \r\ntraceparent: c\r\n", Some(&b"a b"[..])),
            ("tracestate: a\r\n", None),
        ] {
            let text = format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
            let head = parse(text.as_bytes()).unwrap();
            assert_eq!(head.trace_parent, expected, "{headers:?}");
        }
    }
}
