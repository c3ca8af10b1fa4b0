//! The thread that reads a server's events.

use std::io::{self, BufReader};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use conch_client::open_stream;
use conch_client::options::ConnectionOptions;

use crate::events::read_event;
use crate::sample::{Layout, Sample};

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
    server: ConnectionOptions,
    reports: SyncSender<StreamReport>,
}

/// Nobody wants reports any more.
struct Unwanted;

impl StreamReader {
    /// Reads on a thread of its own, which ends with the process, or at the first loss unless it
    /// `retries`.
    pub(crate) fn start(server: ConnectionOptions, retries: bool) -> Receiver<StreamReport> {
        let (reports, receiver) = sync_channel(REPORTS_MAX);
        let reader = StreamReader { server, reports };
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
        let answer = open_stream(&self.server, "/dashboard/events")?;
        check(answer.status.as_u16(), &answer.content_type)?;
        let mut body = BufReader::new(answer.body);
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

/// Whether the answer is a stream of events.
///
/// # Errors
/// What it is instead.
fn check(status: u16, content_type: &str) -> io::Result<()> {
    match status {
        200 if content_type.starts_with("text/event-stream") => Ok(()),
        200 | 404 => Err(refusal(
            "no dashboard is served there; it is on the metrics port of a server with --dashboard",
        )),
        401 | 403 => Err(refusal(
            "the server wants a token that may read metrics: --header 'Authorization: Bearer ...'",
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
        let stream = "text/event-stream; charset=utf-8";
        for (status, content_type, expected) in [
            (200, stream, None),
            (200, "", Some("no dashboard is served there")),
            (
                404,
                "application/json",
                Some("of a server with --dashboard"),
            ),
            (401, "application/json", Some("wants a token")),
            (503, "application/json", Some("as many clients")),
            (500, stream, Some("answers with 500")),
        ] {
            match (check(status, content_type), expected) {
                (Ok(()), None) => {}
                (Err(error), Some(expected)) => assert!(words(&error).contains(expected)),
                (outcome, _) => panic!("{status} {content_type}: {outcome:?}"),
            }
        }
    }
}
