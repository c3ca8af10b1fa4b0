//! The thread that reads a server's events.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::address::TopAddress;
use crate::chunks::ChunkReader;
use crate::events::read_event;
use crate::sample::{Layout, Sample};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The server sends an event per second.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: u64 = 64 << 10;
/// Before a lost server is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// Reports that are not drawn yet.
const REPORTS_MAX: usize = 4;

/// What the thread tells.
pub(crate) enum StreamReport {
    Layout(Layout),
    Sample(Box<Sample>),
    /// There are no events, and why.
    Lost(String),
}

pub(crate) struct StreamReader {
    address: TopAddress,
    reports: SyncSender<StreamReport>,
}

/// Nobody wants reports any more.
struct Unwanted;

impl StreamReader {
    /// Reads on a thread of its own, which ends with the process, or at the first loss unless it
    /// `retries`.
    pub(crate) fn start(address: TopAddress, retries: bool) -> Receiver<StreamReport> {
        let (reports, receiver) = sync_channel(REPORTS_MAX);
        let reader = StreamReader { address, reports };
        let lost = reader.reports.clone();
        let started = std::thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || while reader.read().is_ok() && retries {});
        if let Err(error) = started {
            // There is room: it is the first report.
            let _ = lost.send(StreamReport::Lost(format!(
                "cannot start a thread: {error}"
            )));
        }
        receiver
    }

    /// Reads until the server is lost, and says why.
    fn read(&self) -> Result<(), Unwanted> {
        let reason = match self.read_events() {
            Ok(Ok(())) => "the server has ended the stream".into(),
            Ok(Err(unwanted)) => return Err(unwanted),
            Err(error) => words(&error),
        };
        self.tell(StreamReport::Lost(reason))?;
        std::thread::sleep(PAUSE);
        Ok(())
    }

    fn read_events(&self) -> io::Result<Result<(), Unwanted>> {
        let mut source = BufReader::new(open(&self.address)?);
        let is_chunked = read_head(&mut source)?;
        let mut body: Box<dyn BufRead> = match is_chunked {
            true => Box::new(BufReader::new(ChunkReader::new(source))),
            false => Box::new(source),
        };
        while let Some(event) = read_event(&mut body)? {
            let report = match &*event.name {
                "layout" => StreamReport::Layout(serde_json::from_str(&event.data)?),
                "sample" => StreamReport::Sample(serde_json::from_str(&event.data)?),
                _ => continue,
            };
            if let Err(unwanted) = self.tell(report) {
                return Ok(Err(unwanted));
            }
        }
        Ok(Ok(()))
    }

    fn tell(&self, report: StreamReport) -> Result<(), Unwanted> {
        self.reports.send(report).map_err(|_| Unwanted)
    }
}

trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

/// Connects, and asks for the events.
fn open(address: &TopAddress) -> io::Result<Box<dyn Connection>> {
    let mut connection: Box<dyn Connection> = match address {
        TopAddress::Tcp { host, port } => {
            let stream = connect(host, *port)?;
            stream.set_read_timeout(Some(SILENCE_MAX))?;
            Box::new(stream)
        }
        TopAddress::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(SILENCE_MAX))?;
            Box::new(stream)
        }
    };
    let request = format!(
        "GET /dashboard/events HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n",
        address.host_header()
    );
    connection.write_all(request.as_bytes())?;
    Ok(connection)
}

/// By the first of the host's addresses that takes the connection.
fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut outcome = Err(io::Error::new(
        io::ErrorKind::NotFound,
        "the host has no address",
    ));
    for address in (host, port).to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Reads the head of the answer. Whether chunks follow.
fn read_head(source: &mut impl BufRead) -> io::Result<bool> {
    let mut head = source.by_ref().take(HEAD_BYTES_MAX);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let status: u16 = line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.split(' ').next())
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| refusal("no HTTP server answers there"))?;
    let (mut is_chunked, mut is_stream) = (false, false);
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let lower = line.trim_end().to_ascii_lowercase();
        match lower.split_once(": ") {
            None => break,
            Some(("transfer-encoding", value)) => is_chunked = value == "chunked",
            Some(("content-type", value)) => is_stream = value.starts_with("text/event-stream"),
            Some(_) => {}
        }
    }
    match status {
        200 if is_stream => Ok(is_chunked),
        200 | 404 => Err(refusal(
            "no dashboard is served there; it is on the metrics port of a server with --dashboard",
        )),
        503 => Err(refusal("the dashboard has as many clients as it may")),
        status => Err(refusal(&format!("the server answers with {status}"))),
    }
}

fn refusal(reason: &str) -> io::Error {
    io::Error::other(reason)
}

/// What has happened, as the user sees it.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "no server listens there".into(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the server is silent".into(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the server is gone".into()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_stream_or_says_why_not() {
        let stream = "Content-Type: text/event-stream; charset=utf-8\r\n";
        for (head, expected) in [
            (format!("HTTP/1.1 200 OK\r\n{stream}\r\n"), Ok(false)),
            (
                format!("HTTP/1.1 200 OK\r\n{stream}Transfer-Encoding: chunked\r\n\r\n"),
                Ok(true),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".into(),
                Err("no dashboard is served there"),
            ),
            (
                "HTTP/1.1 404 Not Found\r\n\r\n".into(),
                Err("of a server with --dashboard"),
            ),
            (
                "HTTP/1.1 503 Service Unavailable\r\n\r\n".into(),
                Err("as many clients"),
            ),
            ("SSH-2.0\r\n".into(), Err("no HTTP server")),
        ] {
            match (read_head(&mut head.as_bytes()), expected) {
                (Ok(is_chunked), Ok(expected)) => assert_eq!(is_chunked, expected),
                (Err(error), Err(expected)) => assert!(words(&error).contains(expected)),
                (outcome, _) => panic!("{head}: {outcome:?}"),
            }
        }
    }
}
