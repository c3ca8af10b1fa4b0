//! The last head of a connection.
//!
//! A client that keeps its connection mostly sends the same head again, byte by byte. What a head
//! parses to depends on nothing but its bytes, so the next one is compared before it is parsed.

use std::ops::Range;

use super::{BodyFraming, HeadRefusal, HttpMethod, RequestHead, parse};

/// Longer heads are parsed each time.
const BYTES_MAX: usize = 1 << 10;

/// What a connection keeps of the head before, from its second request on.
#[derive(Default)]
pub(crate) struct RecentHead {
    is_kept_from_now: bool,
    /// Its bytes, or an earlier one's, whose memory the next one gets.
    bytes: Vec<u8>,
    /// None if no head is kept.
    parts: Option<HeadParts>,
}

/// A parsed head; ranges are those of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeadParts {
    method: HttpMethod,
    path: Range<usize>,
    framing: BodyFraming,
    keeps_alive: bool,
    is_version_1_0: bool,
    expects_continue: bool,
    json_length: Option<Range<usize>>,
    content_encoding: Option<Range<usize>>,
    accept_encoding: Range<usize>,
    lines: Range<usize>,
}

impl RecentHead {
    /// The length of the head that `received` begins with, if it is the one before.
    #[inline]
    pub(crate) fn length_in(&self, received: &[u8]) -> Option<usize> {
        let is_same = self.parts.is_some() && received.starts_with(&self.bytes);
        is_same.then_some(self.bytes.len())
    }

    /// As [`parse`].
    ///
    /// # Errors
    /// As for [`parse`].
    #[inline]
    pub(crate) fn parse<'a>(&mut self, bytes: &'a [u8]) -> Result<RequestHead<'a>, HeadRefusal> {
        if let Some(parts) = &self.parts
            && self.bytes == bytes
            && let Some(head) = parts.head_of(bytes)
        {
            return Ok(head);
        }
        let head = parse(bytes)?;
        self.keep(bytes, &head);
        Ok(head)
    }

    fn keep(&mut self, bytes: &[u8], head: &RequestHead<'_>) {
        self.parts = None;
        self.bytes.clear();
        let may_come_again = bytes.len() <= BYTES_MAX && head.trace_parent.is_none();
        if std::mem::replace(&mut self.is_kept_from_now, true)
            && may_come_again
            && let Some(parts) = HeadParts::of(bytes, head)
            && self.bytes.try_reserve_exact(bytes.len()).is_ok()
        {
            self.bytes.extend_from_slice(bytes);
            self.parts = Some(parts);
        }
    }
}

impl HeadParts {
    fn of(bytes: &[u8], head: &RequestHead<'_>) -> Option<HeadParts> {
        let text = |text: &str| range_of(bytes, text.as_bytes());
        let optional = |field: Option<&str>| match field {
            Some(field) => text(field).map(Some),
            None => Some(None),
        };
        Some(HeadParts {
            method: head.method,
            path: text(head.path)?,
            framing: head.framing,
            keeps_alive: head.keeps_alive,
            is_version_1_0: head.is_version_1_0,
            expects_continue: head.expects_continue,
            json_length: optional(head.json_length)?,
            content_encoding: optional(head.content_encoding)?,
            accept_encoding: text(head.accept_encoding)?,
            lines: range_of(bytes, head.lines)?,
        })
    }

    /// The head that these bytes are, which are those that the parts are of.
    #[inline]
    fn head_of<'a>(&self, bytes: &'a [u8]) -> Option<RequestHead<'a>> {
        let text = |range: &Range<usize>| {
            let part = bytes.get(range.clone())?;
            std::str::from_utf8(part).ok()
        };
        let optional = |range: &Option<Range<usize>>| match range {
            Some(range) => text(range).map(Some),
            None => Some(None),
        };
        Some(RequestHead {
            method: self.method,
            path: text(&self.path)?,
            framing: self.framing,
            keeps_alive: self.keeps_alive,
            is_version_1_0: self.is_version_1_0,
            expects_continue: self.expects_continue,
            json_length: optional(&self.json_length)?,
            content_encoding: optional(&self.content_encoding)?,
            accept_encoding: text(&self.accept_encoding)?,
            trace_parent: None,
            lines: bytes.get(self.lines.clone())?,
        })
    }
}

/// Where `part` lies in `bytes`. What is empty may lie elsewhere.
fn range_of(bytes: &[u8], part: &[u8]) -> Option<Range<usize>> {
    if part.is_empty() {
        return Some(0..0);
    }
    let start = part.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?;
    let end = start + part.len();
    (end <= bytes.len()).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: [&str; 9] = [
        "GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "POST /v2/models/m/infer?a HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\
         Inference-Header-Content-Length: 7\r\nAccept-Encoding: gzip\r\n\r\n",
        "POST http://h/v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\
         Content-Encoding: deflate\r\nExpect: 100-continue\r\n\r\n",
        "POST /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: \r\n\r\n",
        "GET ?a HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /v2 HTTP/1.1\r\nHost: x\r\ntraceparent: 00-01-02-01\r\n\r\n",
        "GET /v2 HTTP/1.1\r\n\r\n",
        "GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    ];

    /// What `parse` makes of a head, as text.
    fn parsed(outcome: &Result<RequestHead<'_>, HeadRefusal>) -> String {
        format!("{outcome:?}")
    }

    #[test]
    fn a_head_parses_to_the_same_however_often_it_comes() {
        for first in HEADS {
            for second in HEADS {
                let mut recent = RecentHead::default();
                for head in [first, first, second, first, first, second, second, second] {
                    let expected = parsed(&parse(head.as_bytes()));
                    // Elsewhere in memory each time, with something behind it.
                    let received = [head.as_bytes(), b"body"].concat();
                    if let Some(length) = recent.length_in(&received) {
                        assert_eq!(length, head.len());
                    }
                    let own = &received[..head.len()];
                    assert_eq!(parsed(&recent.parse(own)), expected, "{head}");
                }
            }
        }
    }

    #[test]
    fn heads_are_kept_from_the_second_request_on() {
        let head = HEADS[2].as_bytes();
        let mut recent = RecentHead::default();
        for is_kept in [false, false, true, true] {
            assert_eq!(recent.length_in(head), is_kept.then_some(head.len()));
            recent.parse(head).unwrap();
        }
        assert_eq!(recent.length_in(&head[..head.len() - 1]), None);
        for varying in [
            HEADS[6].to_owned(),
            HEADS[0].replace('x', &"x".repeat(BYTES_MAX)),
        ] {
            recent.parse(varying.as_bytes()).unwrap();
            assert_eq!(recent.length_in(varying.as_bytes()), None, "{varying}");
            assert_eq!(recent.length_in(head), None);
        }
    }
}
