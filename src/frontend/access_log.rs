//! The access log: a line for one in so many HTTP requests and gRPC calls.
//!
//! Each shard counts for itself. A request that is to be logged carries an [`AccessRecord`], which
//! writes its line when it is dropped: however the request ends, it is told. Shard only.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;

use conch_engine::clock::monotonic_ns;
use conch_engine::request::messages::RequestIdPrefix;
use conch_log::{self as log, LogFields};

use crate::peer::Peer;

/// Of a path, what is kept.
const PATH_BYTES_MAX: usize = 512;
/// Of a request's id, what is kept.
const ID_BYTES_MAX: usize = 512;

/// Which requests of a shard are logged.
#[derive(Debug)]
pub(crate) struct AccessLog {
    /// One in so many; none: no request.
    rate: Option<NonZeroU32>,
    seen: Cell<u32>,
}

impl AccessLog {
    pub(crate) fn new(rate: Option<NonZeroU32>) -> AccessLog {
        AccessLog {
            rate,
            seen: Cell::new(0),
        }
    }

    /// The record of a request that begins, if it is to be logged. The path has no query.
    #[inline]
    pub(crate) fn record(
        &self,
        peer: &Peer,
        (protocol, method): (&'static str, &'static str),
        path: &str,
    ) -> Option<Rc<AccessRecord>> {
        let rate = self.rate?;
        self.samples(rate)
            .then(|| AccessRecord::new(*peer, (protocol, method), path))
    }

    fn samples(&self, rate: NonZeroU32) -> bool {
        let seen = self.seen.get() + 1;
        let is_due = seen >= rate.get();
        self.seen.set(if is_due { 0 } else { seen });
        is_due
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessOutcome {
    /// The client left, or the connection failed, before there was an answer.
    Unanswered,
    Http(u16),
    Grpc(&'static str),
}

/// One request that is logged.
#[derive(Debug)]
pub(crate) struct AccessRecord {
    peer: Peer,
    protocol: &'static str,
    method: &'static str,
    path: Box<str>,
    start_ns: u64,
    /// Of an inference.
    request_id: OnceCell<Box<str>>,
    received_bytes: Cell<Option<usize>>,
    sent_bytes: Cell<Option<usize>>,
    outcome: Cell<AccessOutcome>,
}

impl AccessRecord {
    fn new(
        peer: Peer,
        (protocol, method): (&'static str, &'static str),
        path: &str,
    ) -> Rc<AccessRecord> {
        Rc::new(AccessRecord {
            peer,
            protocol,
            method,
            path: cut(path, PATH_BYTES_MAX),
            start_ns: monotonic_ns(),
            request_id: OnceCell::new(),
            received_bytes: Cell::new(None),
            sent_bytes: Cell::new(None),
            outcome: Cell::new(AccessOutcome::Unanswered),
        })
    }

    pub(crate) fn note_id(&self, request_id: &str) {
        if !request_id.is_empty() {
            self.request_id
                .get_or_init(|| cut(request_id, ID_BYTES_MAX));
        }
    }

    /// The body is there.
    pub(crate) fn note_received(&self, bytes: usize) {
        self.received_bytes.set(Some(bytes));
    }

    /// The answer has this status; its body is so long, if that is known.
    pub(crate) fn note_answer(&self, status: u16, bytes: Option<usize>) {
        self.outcome.set(AccessOutcome::Http(status));
        self.sent_bytes.set(bytes);
    }

    /// The name of a gRPC code.
    pub(crate) fn note_status(&self, code: &'static str) {
        self.outcome.set(AccessOutcome::Grpc(code));
    }
}

impl fmt::Display for AccessRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccessRecord {
            peer,
            protocol,
            method,
            path,
            ..
        } = self;
        write!(f, "access: client={peer} protocol={protocol}")?;
        if !method.is_empty() {
            write!(f, " method={method}")?;
        }
        write!(f, " path={path}")?;
        match self.outcome.get() {
            AccessOutcome::Unanswered => f.write_str(" status=unanswered")?,
            AccessOutcome::Http(status) => write!(f, " status={status}")?,
            AccessOutcome::Grpc(code) => write!(f, " status={code}")?,
        }
        if let Some(bytes) = self.received_bytes.get() {
            write!(f, " received_bytes={bytes}")?;
        }
        if let Some(bytes) = self.sent_bytes.get() {
            write!(f, " sent_bytes={bytes}")?;
        }
        Ok(())
    }
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        let id = self.request_id.get().map_or("", |id| &**id);
        let fields = LogFields {
            request_id: id,
            model: "",
        };
        let duration_us = monotonic_ns().saturating_sub(self.start_ns) / 1_000;
        // The other lines about requests without an id say that it is unknown.
        match id {
            "" => log::info_with_fields!(fields, "{self} duration_us={duration_us}"),
            id => log::info_with_fields!(
                fields,
                "{}{self} duration_us={duration_us}",
                RequestIdPrefix(id)
            ),
        }
    }
}

fn cut(text: &str, bytes_max: usize) -> Box<str> {
    let end = text.floor_char_boundary(text.len().min(bytes_max));
    text[..end].into()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn one_request_in_so_many() {
        for (rate, expected) in [(0, ""), (1, "xxxxxxx"), (3, "..x..x.")] {
            let log = AccessLog::new(NonZeroU32::new(rate));
            let record = || log.record(&Peer::Unknown, ("HTTP", "GET"), "/");
            let taken: String = (0..7)
                .map(|_| if record().is_some() { 'x' } else { '.' })
                .collect();
            assert_eq!(taken.trim_matches(|c| rate == 0 && c == '.'), expected);
        }
    }

    #[test]
    fn what_a_record_tells() {
        let peer = Peer::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let record = AccessRecord::new(peer, ("HTTP", "POST"), "/v2/models/m/infer");
        assert_eq!(
            record.to_string(),
            "access: client=127.0.0.1 protocol=HTTP method=POST path=/v2/models/m/infer \
             status=unanswered"
        );
        record.note_received(5);
        record.note_answer(200, Some(7));
        assert!(
            record
                .to_string()
                .ends_with(" status=200 received_bytes=5 sent_bytes=7")
        );
        let record = AccessRecord::new(Peer::User(12), ("gRPC", ""), &"é".repeat(400));
        record.note_status("UNAVAILABLE");
        let text = record.to_string();
        assert!(text.starts_with("access: client=user:12 protocol=gRPC path=éé"));
        assert!(text.ends_with("é status=UNAVAILABLE"));
        assert_eq!(record.path.len(), PATH_BYTES_MAX);
    }
}
