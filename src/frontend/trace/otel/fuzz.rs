//! What the fuzz target of trace contexts does with its input.

use super::context::{RemoteContext, parent_text};
use super::url::CollectorUrl;

/// The headers of a client, and the address of a collector.
///
/// # Panics
/// If what goes on is not what came.
pub fn trace_context(parent: &[u8], state: &[u8]) {
    let read = |parent: &[u8]| RemoteContext::read(Some(parent), || Some(state));
    if let Some(context) = read(parent) {
        let text = parent_text(&context.trace_id, &context.span_id);
        assert_eq!(read(text.as_bytes()), Some(context));
    }
    if let Ok(text) = std::str::from_utf8(parent) {
        let _ = CollectorUrl::parse(text);
    }
}
