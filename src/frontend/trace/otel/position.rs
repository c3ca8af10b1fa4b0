//! Where the spans of one request hang, and when they began and ended.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use conch_engine::clock::monotonic_ns;

use super::context::{RemoteContext, SpanId, TraceId, parent_text};
use crate::http::json::write;

/// The place of a trace's spans; every traced request has one while spans are exported.
pub(in crate::trace) struct SpanPosition {
    pub(in crate::trace) trace_id: TraceId,
    /// Of the server's request; requests made on its behalf are below that.
    pub(in crate::trace) root: Option<RootSpan>,
    /// What the model's span is below.
    pub(in crate::trace) parent_id: SpanId,
    /// Of the model's span. It is known from the start, since backends are told it.
    pub(in crate::trace) model_id: SpanId,
    pub(in crate::trace) state: Arc<str>,
    /// Monotonic.
    pub(in crate::trace) began_ns: u64,
    /// Monotonic; 0 until it has ended.
    pub(in crate::trace) ended_ns: u64,
}

/// The span of a request as the front end knows it.
pub(in crate::trace) struct RootSpan {
    pub(in crate::trace) id: SpanId,
    /// The client's.
    pub(in crate::trace) parent_id: Option<SpanId>,
}

impl SpanPosition {
    /// Of a request that came in now, below the client's span if it named one.
    pub(in crate::trace) fn begin(remote: Option<RemoteContext>) -> SpanPosition {
        let id = new_span_id();
        let (trace_id, parent_id, state) = match remote {
            Some(remote) => (remote.trace_id, Some(remote.span_id), remote.state),
            None => (new_trace_id(), None, Arc::default()),
        };
        SpanPosition {
            trace_id,
            root: Some(RootSpan { id, parent_id }),
            parent_id: id,
            model_id: new_span_id(),
            state,
            began_ns: monotonic_ns(),
            ended_ns: 0,
        }
    }

    /// Of a request that is made on behalf of this one.
    pub(in crate::trace) fn below(&self) -> SpanPosition {
        SpanPosition {
            trace_id: self.trace_id,
            root: None,
            parent_id: self.model_id,
            model_id: new_span_id(),
            state: Arc::clone(&self.state),
            began_ns: monotonic_ns(),
            ended_ns: 0,
        }
    }

    pub(in crate::trace) fn end(self) -> SpanPosition {
        SpanPosition {
            ended_ns: monotonic_ns(),
            ..self
        }
    }

    /// The headers that carry the model's span on, as the JSON object that backends know from
    /// upstream.
    pub(in crate::trace) fn to_json(&self) -> String {
        let parent = parent_text(&self.trace_id, &self.model_id);
        let mut text = Vec::with_capacity(96 + self.state.len());
        text.extend_from_slice(b"{\"traceparent\":\"");
        text.extend_from_slice(parent.as_bytes());
        text.push(b'"');
        if !self.state.is_empty() {
            text.extend_from_slice(b",\"tracestate\":");
            write::string(&mut text, self.state.as_bytes());
        }
        text.push(b'}');
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn new_trace_id() -> TraceId {
    (u128::from(random()) << 64 | u128::from(random())).to_be_bytes()
}

pub(super) fn new_span_id() -> SpanId {
    random().to_be_bytes()
}

/// Not 0, and never the same twice in a process but by a chance of one in 2^64: a keyed hash of a
/// counter, whose keys the standard library draws from the system. Nobody has to be unable to guess
/// it.
fn random() -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = KEYS.hash_one(NEXT.fetch_add(1, Ordering::Relaxed));
        if number != 0 {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(state: &str) -> RemoteContext {
        RemoteContext {
            trace_id: [0xab; 16],
            span_id: [0xcd; 8],
            state: state.into(),
        }
    }

    #[test]
    fn ids_differ() {
        let ids: std::collections::HashSet<SpanId> = (0..10_000).map(|_| new_span_id()).collect();
        assert_eq!(ids.len(), 10_000);
        assert_ne!(new_trace_id()[..8], new_trace_id()[..8]);
    }

    #[test]
    fn a_request_of_its_own_begins_a_trace() {
        let (first, second) = (SpanPosition::begin(None), SpanPosition::begin(None));
        assert_ne!(first.trace_id, second.trace_id);
        let root = first.root.as_ref().unwrap();
        assert_eq!((root.parent_id, root.id), (None, first.parent_id));
        let ended = first.end();
        assert!(ended.ended_ns >= ended.began_ns);
    }

    #[test]
    fn a_client_s_span_is_above() {
        let position = SpanPosition::begin(Some(remote("x=y")));
        assert_eq!(position.trace_id, [0xab; 16]);
        assert_eq!(position.root.as_ref().unwrap().parent_id, Some([0xcd; 8]));
        let child = position.below();
        assert_eq!((child.trace_id, &*child.state), ([0xab; 16], "x=y"));
        assert_eq!(child.parent_id, position.model_id);
        assert!(child.root.is_none());
    }

    #[test]
    fn backends_are_told_the_span_of_their_model() {
        for (state, more) in [
            ("", ""),
            ("x=y,z=1", r#","tracestate":"x=y,z=1""#),
            ("x=\"\\", r#","tracestate":"x=\"\\""#),
        ] {
            let position = SpanPosition {
                model_id: [1, 2, 3, 4, 5, 6, 7, 0xf8],
                ..SpanPosition::begin(Some(remote(state)))
            };
            let trace = "ab".repeat(16);
            assert_eq!(
                position.to_json(),
                format!("{{\"traceparent\":\"00-{trace}-01020304050607f8-01\"{more}}}")
            );
        }
    }
}
