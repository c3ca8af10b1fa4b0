//! The head of an HTTP/1.1 response.

/// What a client has to know of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HttpResponseHead {
    /// Length of the status line and header fields, blank line included.
    pub(super) head_bytes: usize,
    pub(super) body_bytes: u64,
    pub(super) status: u16,
}

impl HttpResponseHead {
    /// Reads a head; `None` when `bytes` ends before its blank line.
    ///
    /// # Errors
    /// The parser's text when this is not HTTP/1.1, or its body has no length.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<HttpResponseHead>, String> {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        let parsed = response.parse(bytes).map_err(|cause| cause.to_string())?;
        let httparse::Status::Complete(head_bytes) = parsed else {
            return Ok(None);
        };
        let mut body_bytes = None;
        for field in response.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(field.value).ok();
                body_bytes = text.and_then(|text| text.trim().parse().ok());
            }
        }
        Ok(Some(HttpResponseHead {
            head_bytes,
            body_bytes: body_bytes.ok_or("the answer has no length")?,
            status: response.code.unwrap_or(0),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read() {
        let text = b"HTTP/1.1 503 no\r\nA: b\r\ncontent-Length: 12\r\n\r\nbody";
        let head = HttpResponseHead::parse(text).unwrap().unwrap();
        assert_eq!(
            (head.head_bytes, head.body_bytes, head.status),
            (text.len() - 4, 12, 503)
        );
        assert_eq!(HttpResponseHead::parse(&text[..40]), Ok(None));
        for text in [
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        ] {
            assert!(HttpResponseHead::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
