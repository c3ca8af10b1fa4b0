//! One batch to a collector: HTTP/1.1 over a connection of its own, until a deadline.
//!
//! The resolution of the collector's name is the one step without a deadline: the system's resolver
//! has its own. Blocks; on the exporter's thread.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use conch_proto::Message;
use conch_proto::otlp::{ExportTracePartialSuccess, ExportTraceServiceResponse};

use super::url::CollectorUrl;

/// The head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The body of an answer, which says at most which spans were not taken, and why.
const BODY_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 64;

/// Why a batch was not taken.
#[derive(Debug)]
pub(super) struct PostError {
    pub(super) message: String,
    /// The collector has none of it, and may take it later.
    pub(super) may_retry: bool,
}

/// Sends `body`; returns what the collector did not want of it.
///
/// # Errors
/// Whatever the network or the collector says. After [`PostError::may_retry`] it may be sent again.
pub(super) fn post(
    url: &CollectorUrl,
    body: &[u8],
    deadline: Instant,
) -> Result<Option<ExportTracePartialSuccess>, PostError> {
    let stream = connect(url, deadline).map_err(|cause| PostError {
        message: format!("cannot connect: {cause}"),
        may_retry: true,
    })?;
    // What has been sent in part may have been taken.
    exchange(url, body, TimedStream { stream, deadline }).unwrap_or_else(|cause| {
        Err(PostError {
            message: match cause.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    "no answer in time".to_owned()
                }
                _ => cause.to_string(),
            },
            may_retry: false,
        })
    })
}

/// Tries all addresses of the host, in the system's order.
fn connect(url: &CollectorUrl, deadline: Instant) -> io::Result<TcpStream> {
    let addresses = (&*url.host, url.port).to_socket_addrs()?;
    let mut outcome = Err(io::Error::other("the host has no address"));
    for address in addresses {
        outcome = connect_to(address, deadline);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn connect_to(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, remaining(deadline)?)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

type Outcome = Result<Option<ExportTracePartialSuccess>, PostError>;

fn exchange(url: &CollectorUrl, body: &[u8], mut stream: TimedStream) -> io::Result<Outcome> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: conch/{version}\r\n\
         Content-Type: application/x-protobuf\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n",
        path = url.path,
        authority = url.authority(),
        version = env!("CARGO_PKG_VERSION"),
        length = body.len(),
    );
    // A collector may refuse early and close: what it says then counts for more than the failure to
    // send the rest.
    let sent = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body));
    let mut received = Vec::new();
    let answer = loop {
        if let Some(answer) = AnswerHead::parse(&received)? {
            break answer;
        }
        if received.len() >= HEAD_BYTES_MAX {
            return Err(io::Error::other("the head of the answer is too large"));
        }
        if stream.read_some(&mut received)? == 0 {
            sent?;
            return Err(io::Error::other("closed without an answer"));
        }
    };
    if !(200..300).contains(&answer.status) {
        return Ok(Err(PostError {
            message: format!("answered with status {}", answer.status),
            may_retry: matches!(answer.status, 429 | 502 | 503 | 504),
        }));
    }
    Ok(Ok(read_refusal(stream, received, &answer)))
}

/// What the body of a good answer says of spans that were not taken. A body that cannot be read
/// says nothing: the batch was taken.
fn read_refusal(
    mut stream: TimedStream,
    received: Vec<u8>,
    answer: &AnswerHead,
) -> Option<ExportTracePartialSuccess> {
    let length = answer
        .body_bytes
        .filter(|length| *length <= BODY_BYTES_MAX)?;
    let mut body = received.get(answer.head_bytes..)?.to_vec();
    while body.len() < length {
        if stream.read_some(&mut body).ok()? == 0 {
            return None;
        }
    }
    let response = ExportTraceServiceResponse::decode(body.get(..length)?).ok()?;
    response
        .partial_success
        .filter(|partial| partial.rejected_spans != 0 || !partial.error_message.is_empty())
}

struct AnswerHead {
    status: u16,
    head_bytes: usize,
    /// None: not known before the connection's end.
    body_bytes: Option<usize>,
}

impl AnswerHead {
    /// None while it is not whole.
    fn parse(bytes: &[u8]) -> io::Result<Option<AnswerHead>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(bytes).map_err(io::Error::other)?;
        let (httparse::Status::Complete(head_bytes), Some(status)) = (parsed, head.code) else {
            return Ok(None);
        };
        let length = head
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let body_bytes = length.and_then(|header| {
            let digits = std::str::from_utf8(header.value).ok()?;
            digits.trim().parse().ok()
        });
        Ok(Some(AnswerHead {
            status,
            head_bytes,
            body_bytes,
        }))
    }
}

/// A connection on which nothing lasts longer than the deadline, however slow the other side is.
struct TimedStream {
    stream: TcpStream,
    deadline: Instant,
}

impl TimedStream {
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream
                .set_write_timeout(Some(remaining(self.deadline)?))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = bytes.get(count..).unwrap_or(&[]),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    /// Appends what has come; 0 at the end.
    fn read_some(&mut self, received: &mut Vec<u8>) -> io::Result<usize> {
        let mut piece = [0; 4 << 10];
        loop {
            self.stream
                .set_read_timeout(Some(remaining(self.deadline)?))?;
            match self.stream.read(&mut piece) {
                Ok(count) => {
                    received.extend_from_slice(piece.get(..count).unwrap_or(&[]));
                    return Ok(count);
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;

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
        let refused = |message: &str, may_retry: bool| Err((message.to_owned(), may_retry));
        for (answer, expected) in [
            (answer("200 OK", b""), Ok(None)),
            (answer("204 No Content", b""), Ok(None)),
            (b"HTTP/1.0 200 OK\r\n\r\n{}".to_vec(), Ok(None)),
            (answer("200 OK", &partial.encode_to_vec()), Ok(Some(3))),
            (answer("200 OK", b"\xff\xff"), Ok(None)),
            (
                answer("400 Bad Request", b"why"),
                refused("answered with status 400", false),
            ),
            (
                answer("301 Moved", b""),
                refused("answered with status 301", false),
            ),
            (
                answer("429 Too Many Requests", b""),
                refused("answered with status 429", true),
            ),
            (
                answer("503 Unavailable", b""),
                refused("answered with status 503", true),
            ),
            (Vec::new(), refused("closed without an answer", false)),
            (
                b"SSH-2.0-x\r\n".to_vec(),
                refused("invalid HTTP version", false),
            ),
            (
                [b"HTTP/1.1 200 OK\r\na: ", &vec![b'x'; HEAD_BYTES_MAX][..]].concat(),
                refused("the head of the answer is too large", false),
            ),
        ] {
            let shown = String::from_utf8_lossy(&answer[..answer.len().min(80)]).into_owned();
            let (url, serving) = collector(answer);
            let outcome = post(&url, b"spans", soon());
            let outcome = outcome
                .map(|partial| partial.map(|partial| partial.rejected_spans))
                .map_err(|error| (error.message, error.may_retry));
            assert_eq!(outcome, expected, "{shown}");
            let request = String::from_utf8(serving.join().unwrap()).unwrap();
            assert!(request.starts_with("POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:"));
            assert!(request.contains("\r\nContent-Type: application/x-protobuf\r\n"));
            assert!(request.ends_with("\r\nContent-Length: 5\r\nConnection: close\r\n\r\nspans"));
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
            error.may_retry && error.message.contains("refused"),
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
            (&*error.message, error.may_retry),
            ("no answer in time", false)
        );
        let error = post(&url, b"spans", deadline).unwrap_err();
        assert!(error.message.starts_with("cannot connect"), "{error:?}");
    }
}
