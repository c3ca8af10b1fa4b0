//! One batch to a collector: over HTTP or HTTPS on a connection of its own, until a deadline.
//! Blocks; on the exporter's thread.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_engine::Error;
use conch_proto::Message;
use conch_proto::otlp::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use ureq::{Agent, Body, Timeout};

use super::options::CollectorOptions;
use crate::tls;

/// The head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Each way. ureq clears them for each batch. A head that is too long has to fit, to be seen as
/// such.
const BUFFER_BYTES: usize = 2 * HEAD_BYTES_MAX;
/// The body of an answer, which says at most which spans were not taken, and why.
const BODY_BYTES_MAX: u64 = 64 << 10;

/// Why a batch was not taken.
#[derive(Debug)]
pub(super) struct PostError {
    pub(super) message: String,
    /// The collector has none of it, and may take it later: after so long, if it says that; none if
    /// it must not be sent again.
    pub(super) retry_after: Option<Duration>,
}

/// What posts batches.
pub(super) struct CollectorClient {
    agent: Agent,
    options: Arc<CollectorOptions>,
    headers: HeaderMap,
}

impl CollectorClient {
    /// Reads the certificates that vouch for the collector, if it is reached by HTTPS.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they, or a header, are of no use.
    pub(super) fn new(options: &Arc<CollectorOptions>) -> Result<CollectorClient, Error> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(0)
            .max_response_header_size(HEAD_BYTES_MAX)
            .input_buffer_size(BUFFER_BYTES)
            .output_buffer_size(BUFFER_BYTES)
            .user_agent(concat!("conch/", env!("CARGO_PKG_VERSION")));
        if options.url.is_encrypted() {
            config = config.tls_config(tls::client_config(options.roots.as_deref())?);
        }
        Ok(CollectorClient {
            agent: config.build().new_agent(),
            options: Arc::clone(options),
            headers: headers(&options.headers)?,
        })
    }

    /// Sends `body`; returns what the collector did not want of it.
    ///
    /// # Errors
    /// Whatever the network or the collector says.
    pub(super) fn post(
        &self,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Option<ExportTracePartialSuccess>, PostError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failure(ureq::Error::Timeout(Timeout::Global)));
        }
        let mut request = self.agent.post(&self.options.url.uri);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.config().timeout_global(Some(left)).build();
        let answer = request.send(body).map_err(failure)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(PostError {
                message: format!("answered with status {}", status.as_u16()),
                retry_after: is_temporary(status).then(|| pause(answer.headers())),
            });
        }
        Ok(refused_part(answer.into_body()))
    }
}

/// What the body of a good answer says of spans that were not taken. A body that cannot be read
/// says nothing: the batch was taken.
fn refused_part(mut body: Body) -> Option<ExportTracePartialSuccess> {
    let limited = body.with_config().limit(BODY_BYTES_MAX);
    let response = ExportTraceServiceResponse::decode(&*limited.read_to_vec().ok()?).ok()?;
    response
        .partial_success
        .filter(|partial| partial.rejected_spans != 0 || !partial.error_message.is_empty())
}

/// Those with which OTLP lets a client try again.
fn is_temporary(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// How long the collector wants to be left alone.
fn pause(headers: &HeaderMap) -> Duration {
    let seconds = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

fn failure(cause: ureq::Error) -> PostError {
    // What has been sent in part may have been taken.
    let is_unsent = match &cause {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(cause) => matches!(
            cause.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
        ),
        _ => false,
    };
    let message = match cause {
        ureq::Error::Timeout(_) => String::from("no answer in time"),
        cause if is_unsent => format!("cannot connect: {cause}"),
        cause => cause.to_string(),
    };
    PostError {
        message,
        retry_after: is_unsent.then_some(Duration::ZERO),
    }
}

fn headers(given: &[(String, String)]) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-protobuf"),
    );
    for (name, value) in given {
        let parsed = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
        let (Ok(name), Ok(mut value)) = parsed else {
            // Its value may be a password.
            return Err(Error::invalid(format!(
                "'{name}' cannot be a header of requests to the collector, or not with its value"
            )));
        };
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::trace::otel::url::CollectorUrl;

    fn post(
        url: &CollectorUrl,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Option<ExportTracePartialSuccess>, PostError> {
        let options = CollectorOptions {
            url: url.clone(),
            headers: vec![("x-token".to_owned(), "a b".to_owned())],
            ..CollectorOptions::default()
        };
        let client = CollectorClient::new(&Arc::new(options)).unwrap();
        client.post(body, deadline)
    }

    /// Takes one request whole, answers with these bytes, and gives the request.
    fn collector(answer: Vec<u8>) -> (CollectorUrl, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"spans") {
                let mut piece = [0; 512];
                let count = stream.read(&mut piece).unwrap();
                assert_ne!(count, 0);
                received.extend_from_slice(&piece[..count]);
            }
            stream.write_all(&answer).unwrap();
            received
        });
        let url = CollectorUrl::parse(&format!("http://127.0.0.1:{port}/v1/traces")).unwrap();
        (url, serving)
    }

    fn soon() -> Instant {
        // Nothing here takes a second; a busy machine may need some.
        Instant::now() + Duration::from_secs(60)
    }

    fn answer(status: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn answers() {
        let partial = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: 3,
                error_message: "no".to_owned(),
            }),
        };
        let refused = |message: &str, seconds: Option<u64>| {
            Err((message.to_owned(), seconds.map(Duration::from_secs)))
        };
        let body = partial.encode_to_vec();
        let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), &body].concat();
        let busy = "HTTP/1.1 429 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
        for (answer, expected) in [
            (answer("200 OK", b""), Ok(None)),
            (answer("204 No Content", b""), Ok(None)),
            (b"HTTP/1.0 200 OK\r\n\r\n{}".to_vec(), Ok(None)),
            (answer("200 OK", &body), Ok(Some(3))),
            (
                [
                    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                    &*chunk,
                    b"\r\n0\r\n\r\n",
                ]
                .concat(),
                Ok(Some(3)),
            ),
            (answer("200 OK", b"\xff\xff"), Ok(None)),
            (
                answer("400 Bad Request", b"why"),
                refused("answered with status 400", None),
            ),
            (
                answer("301 Moved", b""),
                refused("answered with status 301", None),
            ),
            (
                busy.as_bytes().to_vec(),
                refused("answered with status 429", Some(7)),
            ),
            (
                answer("503 Unavailable", b""),
                refused("answered with status 503", Some(0)),
            ),
            (Vec::new(), refused("io: Peer disconnected", None)),
            (
                b"SSH-2.0-x\r\n".to_vec(),
                refused("protocol: http parse fail: invalid HTTP version", None),
            ),
            (
                [b"HTTP/1.1 200 OK\r\na: ", &vec![b'x'; HEAD_BYTES_MAX][..]].concat(),
                refused("response header is too big: 16404 > 16384", None),
            ),
        ] {
            let shown = String::from_utf8_lossy(&answer[..answer.len().min(80)]).into_owned();
            let (url, serving) = collector(answer);
            let outcome = post(&url, b"spans", soon());
            let outcome = outcome
                .map(|partial| partial.map(|partial| partial.rejected_spans))
                .map_err(|error| (error.message, error.retry_after));
            assert_eq!(outcome, expected, "{shown}");
            let request = String::from_utf8(serving.join().unwrap()).unwrap();
            let request = request.to_lowercase();
            assert!(
                request.starts_with("post /v1/traces http/1.1\r\n"),
                "{request}"
            );
            for header in [
                "host: 127.0.0.1:",
                "content-type: application/x-protobuf\r\n",
                "content-length: 5\r\n",
                "user-agent: conch/",
                "x-token: a b\r\n",
            ] {
                assert!(request.contains(&format!("\r\n{header}")), "{request}");
            }
            assert!(request.ends_with("\r\n\r\nspans"), "{request}");
        }
    }

    #[test]
    fn a_collector_that_is_not_there_may_come() {
        // Bound and closed again: nobody listens.
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let url = CollectorUrl::parse(&format!("http://127.0.0.1:{port}/")).unwrap();
        let error = post(&url, b"spans", soon()).unwrap_err();
        assert!(
            error.retry_after == Some(Duration::ZERO) && error.message.contains("refused"),
            "{error:?}"
        );
    }

    #[test]
    fn a_collector_that_does_not_answer_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = CollectorUrl::parse(&format!("http://127.0.0.1:{port}/")).unwrap();
        // What is measured: without a deadline this would never end.
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = post(&url, b"spans", deadline).unwrap_err();
        assert_eq!(
            (&*error.message, error.retry_after.is_some()),
            ("no answer in time", false)
        );
        let error = post(&url, b"spans", deadline).unwrap_err();
        assert_eq!(error.message, "no answer in time");
    }

    #[test]
    fn what_is_of_no_use_is_refused() {
        let encrypted = |roots: &str| CollectorOptions {
            url: CollectorUrl::parse("https://127.0.0.1:1").unwrap(),
            roots: Some(roots.into()),
            ..CollectorOptions::default()
        };
        let empty = std::env::temp_dir().join(format!("conch-roots-{}", std::process::id()));
        std::fs::write(&empty, "no certificate").unwrap();
        let header = CollectorOptions {
            headers: vec![("x y".to_owned(), "secret".to_owned())],
            ..CollectorOptions::default()
        };
        for (options, expected) in [
            (encrypted("/nonexistent/roots.pem"), "No such file"),
            (encrypted(empty.to_str().unwrap()), "no certificate in PEM"),
            (header, "'x y' cannot be a header"),
        ] {
            let Err(error) = CollectorClient::new(&Arc::new(options)) else {
                panic!("{expected}");
            };
            assert!(error.message.contains(expected), "{error}");
            assert!(!error.message.contains("secret"), "{error}");
        }
        std::fs::remove_file(empty).unwrap();
    }
}
