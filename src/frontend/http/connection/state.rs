//! The state of a connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use conch_engine::clock;
use conch_memory::Budget;

use super::source::BodySource;
use super::turn::WorkBudget;
use crate::http::head::BodyFraming;
use crate::http::input::InputBuffer;
use crate::shard::{ConnectionGuard, Shard, ShardStream};
use crate::trace::ActiveTrace;

/// The connection is over.
pub(crate) struct ConnectionClosed;

pub(crate) struct HttpConnection {
    pub(crate) shard: Rc<Shard>,
    pub(super) stream: ShardStream,
    pub(super) guard: ConnectionGuard,
    pub(super) input: InputBuffer,
    pub(super) out: Vec<u8>,
    pub(super) scratch: Vec<u8>,
    /// The body of the next answer comes from here, piece by piece.
    pub(super) source: Option<Box<dyn BodySource>>,
    /// Whom the answer that is sent next, or on its way, is traced for.
    pub(super) traced: Option<Arc<ActiveTrace>>,
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
