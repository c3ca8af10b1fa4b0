//! The head of a request: request line and headers, checked strictly enough that nobody in front of
//! us can read it differently.

mod length;
mod parse;
mod recent;

use conch_memory::OutOfMemory;

pub(super) use length::json_length_within;
pub(crate) use length::{length_refusal, parse_json_length};
pub(crate) use parse::parse;
pub(crate) use recent::RecentHead;

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
    /// As on the wire, as far as it is known.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            HttpMethod::Get => "GET",
            HttpMethod::Post => "POST",
            HttpMethod::Delete => "DELETE",
            HttpMethod::Head => "HEAD",
            HttpMethod::Options => "OPTIONS",
            HttpMethod::Other => "other",
        }
    }

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
    /// The first `traceparent`.
    pub(crate) trace_parent: Option<&'a [u8]>,
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
        let mut rest = self.lines;
        while !rest.is_empty() {
            // A line has one name and one colon behind it, as `each_header` says.
            if rest.get(name.len()) == Some(&b':')
                && let Some((header, value)) = rest.split_at_checked(name.len())
                && header.eq_ignore_ascii_case(name.as_bytes())
            {
                let end = memchr::memchr(b'\n', value).unwrap_or(value.len());
                return value.get(1..end).map(<[u8]>::trim_ascii);
            }
            let end = memchr::memchr(b'\n', rest)?;
            rest = rest.get(end + 1..)?;
        }
        None
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

#[inline]
fn text_of(value: &[u8]) -> Result<&str, HeadRefusal> {
    std::str::from_utf8(value).map_err(|_| bad("a header of the request is not valid UTF-8"))
}

/// Looks for the end of a head in `bytes`, of which the first `seen` were looked at before. Returns
/// the head's length.
///
/// # Errors
/// For a line that ends without a carriage return: what one parser takes for one line another takes
/// for two.
pub(crate) fn find_end(bytes: &[u8], seen: usize) -> Result<Option<usize>, HeadRefusal> {
    // The end is four bytes long, and the line feed at `seen - 1` was already looked at.
    for index in memchr::memchr_iter(b'\n', bytes.get(seen..).unwrap_or(&[])) {
        let index = seen + index;
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
pub(crate) fn normalize_version(head: &mut [u8]) {
    let line_end = memchr::memchr(b'\n', head).unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::*;

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
            normalize_version(&mut text);
            let expected = format!("GET /HTTP/1.2 HTTP/{expected}\r\nA: HTTP/1.2\r\n\r\n");
            assert_eq!(text, expected.as_bytes());
        }
        normalize_version(&mut []);
        normalize_version(&mut b"HTTP/1.2\r".to_vec());
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
        assert_eq!(head.find("B"), Some(&b""[..]));
        assert_eq!(head.find("c"), Some(&b"a:b"[..]));
        assert_eq!(head.find("d"), None);
        assert_eq!(head.find(""), None);
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
}
