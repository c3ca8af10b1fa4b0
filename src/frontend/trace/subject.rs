//! Whom a trace is about.

use std::sync::Arc;

/// Whom a trace is about.
pub(super) struct TraceSubject {
    pub(super) model: Arc<str>,
    pub(super) version: i64,
    pub(super) request_id: Box<str>,
}
