//! The state of a connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use conch_engine::clock;
use conch_memory::{Budget, OutOfMemory};

use super::machine::HttpState;
use super::source::BodySource;
use super::turn::WorkBudget;
use crate::access_log::AccessRecord;
use crate::http::head::{BodyFraming, HeadRefusal, HttpMethod, RequestHead};
use crate::http::input::InputBuffer;
use crate::shard::{ConnectionGuard, Shard};
use crate::tls::ConnectionStream;
use crate::trace::ActiveTrace;

/// The connection is over.
pub(crate) struct ConnectionClosed;

/// Why a connection serves no further request.
pub(super) enum ConnectionEnd {
    Closed,
    /// Not for good: it has been idle for a while, and goes on when something comes.
    Rests,
    /// The client is told why.
    Refused(HeadRefusal),
}

impl From<ConnectionClosed> for ConnectionEnd {
    fn from(_: ConnectionClosed) -> ConnectionEnd {
        ConnectionEnd::Closed
    }
}

impl From<HeadRefusal> for ConnectionEnd {
    fn from(refusal: HeadRefusal) -> ConnectionEnd {
        ConnectionEnd::Refused(refusal)
    }
}

impl From<OutOfMemory> for ConnectionEnd {
    fn from(refused: OutOfMemory) -> ConnectionEnd {
        ConnectionEnd::Refused(refused.into())
    }
}

pub(crate) struct HttpConnection {
    pub(super) state: HttpState,
    pub(crate) shard: Rc<Shard>,
    pub(super) stream: ConnectionStream,
    pub(super) guard: ConnectionGuard,
    pub(super) input: InputBuffer,
    pub(super) out: Vec<u8>,
    pub(super) scratch: Vec<u8>,
    /// The body of the next answer comes from here, piece by piece.
    pub(super) source: Option<Box<dyn BodySource>>,
    /// Whom the answer that is sent next, or on its way, is traced for.
    pub(super) traced: Option<Arc<ActiveTrace>>,
    /// Of the request at hand, if it is to be logged.
    pub(super) access: Option<Rc<AccessRecord>>,
    pub(super) turn: WorkBudget,
    /// What the request at hand is charged to.
    pub(super) budget: Arc<Budget>,
    /// The client has ended its side.
    pub(super) is_input_over: bool,
    /// What can be sent of the answer that is waited for.
    pub(super) ahead: SendAhead,
    /// The answer's version has been.
    pub(super) version_is_sent: bool,
}

/// What can be sent before the next part of an answer is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendAhead {
    Nothing,
    /// The version of an answer; here to a request of version 1.0.
    Version {
        is_version_1_0: bool,
    },
    /// The next chunk's first digit.
    ChunkSize,
}

/// What of a head is still needed after its bytes are gone.
pub(super) struct RequestMeta {
    pub(super) framing: BodyFraming,
    pub(super) keeps_alive: bool,
    pub(super) is_version_1_0: bool,
    pub(super) is_head: bool,
    pub(super) expects_continue: bool,
    /// Whose scripts may read the answer.
    pub(super) allowed_origin: Option<Box<str>>,
}

/// What is done about a body, decided from the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyAction {
    Receive,
    /// It is not read, and nothing behind it.
    Skip,
    /// It is too large.
    Refuse,
}

impl RequestMeta {
    #[inline]
    pub(super) fn new(head: &RequestHead<'_>, allowed_origin: Option<Box<str>>) -> RequestMeta {
        RequestMeta {
            framing: head.framing,
            keeps_alive: head.keeps_alive,
            is_version_1_0: head.is_version_1_0,
            is_head: head.method == HttpMethod::Head,
            expects_continue: head.expects_continue,
            allowed_origin,
        }
    }

    #[inline]
    pub(super) fn has_body(&self) -> bool {
        self.framing != BodyFraming::Length(0)
    }

    /// What is done about the body. A client that waits with a body that nobody wants is spared it;
    /// whether it sends it all the same is not known, so nothing is read behind it.
    #[inline]
    pub(super) fn body_action(&self, is_wanted: bool, bytes_max: u64) -> BodyAction {
        let is_endless = match self.framing {
            BodyFraming::Length(length) => length > bytes_max,
            BodyFraming::Chunked => false,
        };
        match is_wanted {
            true if is_endless => BodyAction::Refuse,
            false if is_endless || self.expects_continue && self.has_body() => BodyAction::Skip,
            _ => BodyAction::Receive,
        }
    }
}

impl HttpConnection {
    /// What the request at hand is charged to.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Makes `source` the body of the answer that the service is about to return: of that only the
    /// head is sent.
    pub(crate) fn stream_from(&mut self, source: impl BodySource + 'static) {
        self.source = Some(Box::new(source));
    }

    /// The id of the inference at hand, for the access log.
    #[inline]
    pub(crate) fn note_id(&self, request_id: &str) {
        if let Some(access) = &self.access {
            access.note_id(request_id);
        }
    }

    /// A traced request has its response; what is sent next is its answer.
    pub(crate) fn note_traced(&mut self, traced: Arc<ActiveTrace>) {
        traced.reach("INFER_RESPONSE_COMPLETE");
        self.traced = Some(traced);
    }
}

/// Monotonic ns.
pub(super) fn deadline_after(timeout: Duration) -> u64 {
    clock::monotonic_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_received_skipped_or_refused() {
        use BodyAction::{Receive, Refuse, Skip};
        let (chunked, length) = (BodyFraming::Chunked, BodyFraming::Length);
        // With and without 100-continue, if the body is wanted and if it is not.
        for (framing, wanted, unwanted) in [
            (length(0), [Receive, Receive], [Receive, Receive]),
            (length(10), [Receive, Receive], [Skip, Receive]),
            (length(11), [Refuse, Refuse], [Skip, Skip]),
            (chunked, [Receive, Receive], [Skip, Receive]),
        ] {
            for (is_wanted, row) in [(true, wanted), (false, unwanted)] {
                for (expects_continue, expected) in [true, false].into_iter().zip(row) {
                    let meta = RequestMeta {
                        framing,
                        keeps_alive: true,
                        is_version_1_0: false,
                        is_head: false,
                        expects_continue,
                        allowed_origin: None,
                    };
                    let action = meta.body_action(is_wanted, 10);
                    assert_eq!(
                        action, expected,
                        "{framing:?} {is_wanted} {expects_continue}"
                    );
                }
            }
        }
    }
}
