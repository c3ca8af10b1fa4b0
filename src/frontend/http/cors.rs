//! Cross-origin requests: which web pages may use the server from a browser
//! (`--http-cors-origins`).
//!
//! Without the option the server says nothing about origins, and browsers keep its answers from
//! scripts of other sites, as with upstream.

use std::sync::Arc;

use super::answer::{ContentType, HttpResponse};
use super::head::{HttpMethod, RequestHead};

/// The origins whose scripts may read answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins {
    any: bool,
    names: Arc<[Box<str>]>,
}

/// A list of headers in a preflight request that is longer is not answered with.
const HEADER_LIST_BYTES_MAX: usize = 4096;
/// Seconds for which a browser need not ask again.
const PREFLIGHT_AGE_SECS: u32 = 600;

impl AllowedOrigins {
    /// Reads `*`, or origins with commas between them: `https://app.example,http://localhost:3000`.
    ///
    /// # Errors
    /// The part that is no origin.
    pub fn parse(text: &str) -> Result<AllowedOrigins, String> {
        let mut origins = AllowedOrigins::default();
        let mut names: Vec<Box<str>> = Vec::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            match part {
                "*" => origins.any = true,
                _ if is_origin(part) => names.push(part.into()),
                _ => {
                    return Err(format!(
                        "'{part}' is no origin: expecting '*' or <scheme>://<host>[:<port>]"
                    ));
                }
            }
        }
        origins.names = names.into();
        Ok(origins)
    }

    fn is_empty(&self) -> bool {
        !self.any && self.names.is_empty()
    }

    /// The request's origin, if its scripts may read the answer.
    pub(crate) fn allowed(&self, head: &RequestHead<'_>) -> Option<Box<str>> {
        if self.is_empty() {
            return None;
        }
        let origin = std::str::from_utf8(head.find("origin")?).ok()?;
        // Scheme and host do not depend on case; browsers write both in lower case.
        let is_allowed = self.any
            || self
                .names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(origin));
        (is_allowed && is_printable(origin)).then(|| origin.into())
    }
}

/// `<scheme>://<host>[:<port>]`, or `null` as browsers call pages that are files.
fn is_origin(text: &str) -> bool {
    if text == "null" {
        return true;
    }
    let Some((scheme, host)) = text.split_once("://") else {
        return false;
    };
    let is_scheme = scheme
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme
        && !scheme.is_empty()
        && !host.is_empty()
        && is_printable(host)
        && !host.contains([' ', '/', '?', '#', '@'])
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

/// The answer to a browser that asks whether a script may send what it is about to; none if that is
/// not what `head` asks. Such a request carries none of the script's headers, so it stands in front
/// of every restriction; it changes nothing and says nothing of any model.
pub(crate) fn preflight(head: &RequestHead<'_>) -> Option<HttpResponse> {
    if head.method != HttpMethod::Options || head.find("access-control-request-method").is_none() {
        return None;
    }
    let mut headers = format!(
        "\r\nAccess-Control-Allow-Methods: GET, HEAD, POST, DELETE\r\nAccess-Control-Max-Age: \
         {PREFLIGHT_AGE_SECS}"
    );
    let wanted = head
        .find("access-control-request-headers")
        .and_then(|wanted| std::str::from_utf8(wanted).ok())
        .filter(|wanted| wanted.len() <= HEADER_LIST_BYTES_MAX && is_printable(wanted));
    if let Some(wanted) = wanted {
        headers.push_str("\r\nAccess-Control-Allow-Headers: ");
        headers.push_str(wanted);
    }
    let mut answer = HttpResponse::new(200, ContentType::Plain, Vec::new());
    answer.more_headers = Some(headers.into());
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head;

    #[test]
    fn origins_are_read_and_compared() {
        for (text, origin, is_allowed) in [
            ("", "http://a", false),
            ("http://a", "http://a", true),
            ("http://a", "http://a:80", false),
            ("http://a", "https://a", false),
            (
                " http://b:3000 , HTTPS://A.example ",
                "https://a.example",
                true,
            ),
            ("*", "http://anything", true),
            ("*", "null", true),
            ("http://a", "null", false),
            ("null", "null", true),
            ("*", "caf\u{e9}", false),
        ] {
            let origins = AllowedOrigins::parse(text).unwrap();
            let request = format!("GET / HTTP/1.1\r\nHost: x\r\nOrigin: {origin}\r\n\r\n");
            let head = head::parse(request.as_bytes()).unwrap();
            let allowed = origins.allowed(&head);
            assert_eq!(
                allowed.as_deref(),
                is_allowed.then_some(origin),
                "{text} {origin}"
            );
        }
        let without = head::parse(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(AllowedOrigins::parse("*").unwrap().allowed(&without), None);
        for text in [
            "a",
            "http://",
            "http://a/b",
            "://a",
            "http://a b",
            "http://u@a",
        ] {
            assert!(AllowedOrigins::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_a_preflight_is_answered_as_one() {
        let answer = |request: &str| preflight(&head::parse(request.as_bytes()).unwrap());
        let asks = "Host: x\r\nAccess-Control-Request-Method: POST\r\n";
        assert!(answer(&format!("POST / HTTP/1.1\r\n{asks}\r\n")).is_none());
        assert!(answer("OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n").is_none());
        let headers = |more: &str| {
            answer(&format!("OPTIONS / HTTP/1.1\r\n{asks}{more}\r\n"))
                .and_then(|answer| answer.more_headers)
                .unwrap()
        };
        assert!(!headers("").contains("Allow-Headers"));
        let named = headers("Access-Control-Request-Headers: content-type, x-key\r\n");
        assert!(
            named.ends_with("Allow-Headers: content-type, x-key"),
            "{named}"
        );
        let long = format!("Access-Control-Request-Headers: {}\r\n", "a".repeat(5000));
        assert!(!headers(&long).contains("Allow-Headers"));
    }
}
