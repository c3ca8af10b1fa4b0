//! The listeners that may have TLS, and what differs between them.

/// A listener that may have TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsListener {
    Grpc,
    Http,
    Metrics,
}

/// What gRPC speaks, by its name in the handshake.
const HTTP2: &[u8] = b"h2";

/// The answer to a request without TLS.
const ENCRYPTED_ONLY: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 36\r\n\
    Connection: close\r\n\r\n\
    This port speaks HTTPS, and no HTTP.";

impl TlsListener {
    /// As messages call it.
    pub(super) fn service(self) -> &'static str {
        match self {
            TlsListener::Grpc => "gRPC",
            TlsListener::Http => "HTTP",
            TlsListener::Metrics => "metrics",
        }
    }

    pub(super) fn certificate_flag(self) -> &'static str {
        match self {
            TlsListener::Grpc => "--grpc-server-cert",
            TlsListener::Http => "--http-server-cert",
            TlsListener::Metrics => "--metrics-server-cert",
        }
    }

    pub(super) fn key_flag(self) -> &'static str {
        match self {
            TlsListener::Grpc => "--grpc-server-key",
            TlsListener::Http => "--http-server-key",
            TlsListener::Metrics => "--metrics-server-key",
        }
    }

    pub(super) fn roots_flag(self) -> &'static str {
        match self {
            TlsListener::Grpc => "--grpc-root-cert",
            TlsListener::Http => "--http-root-cert",
            TlsListener::Metrics => "--metrics-root-cert",
        }
    }

    /// What it speaks, by the names in the handshake, the best first.
    pub(super) fn protocols(self) -> &'static [&'static [u8]] {
        match self {
            TlsListener::Grpc => &[HTTP2],
            TlsListener::Http | TlsListener::Metrics => &[b"http/1.1", b"http/1.0"],
        }
    }

    /// Whether a peer may speak that agreed on `protocol`, or on none. One with other protocols
    /// than [`TlsListener::protocols`] has been refused before.
    pub(super) fn accepts(self, protocol: Option<&[u8]>) -> bool {
        match self {
            // gRPC is HTTP/2 by agreement only; who does not ask for it means something else.
            TlsListener::Grpc => protocol == Some(HTTP2),
            TlsListener::Http | TlsListener::Metrics => true,
        }
    }

    /// What a peer is told, in the clear, whose first byte is `first`, if that begins a request
    /// without TLS.
    pub(super) fn plain_refusal(self, first: Option<u8>) -> Option<&'static [u8]> {
        let is_plain = first.is_some_and(|first| first.is_ascii_alphabetic());
        match self {
            TlsListener::Grpc => None,
            TlsListener::Http | TlsListener::Metrics => is_plain.then_some(ENCRYPTED_ONLY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_speak() {
        use TlsListener::{Grpc, Http, Metrics};
        for (listener, protocol, expected) in [
            (Grpc, Some(&b"h2"[..]), true),
            (Grpc, None, false),
            (Http, None, true),
            (Http, Some(b"http/1.1"), true),
            (Metrics, None, true),
        ] {
            assert_eq!(listener.accepts(protocol), expected, "{listener:?}");
        }
    }

    #[test]
    fn requests_in_the_clear_are_answered_where_http_is_spoken() {
        use TlsListener::{Grpc, Http, Metrics};
        for (listener, first, is_answered) in [
            (Http, Some(b'G'), true),
            (Metrics, Some(b'P'), true),
            (Http, Some(0x16), false),
            (Http, Some(0x80), false),
            (Http, None, false),
            (Grpc, Some(b'P'), false),
        ] {
            let answer = listener.plain_refusal(first);
            assert_eq!(answer.is_some(), is_answered, "{listener:?} {first:?}");
        }
        let text = std::str::from_utf8(ENCRYPTED_ONLY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    }
}
