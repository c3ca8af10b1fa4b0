//! W3C Trace Context: the headers `traceparent` and `tracestate`, as they come and as they go on.

use std::fmt::Write;
use std::sync::Arc;

/// 16 bytes that all spans of a trace share, of which not all are 0.
pub(in crate::trace) type TraceId = [u8; 16];
/// 8 bytes, of which not all are 0.
pub(in crate::trace) type SpanId = [u8; 8];

/// Of `tracestate`, what is repeated in every span. The norm asks for 512 at least.
const STATE_BYTES_MAX: usize = 512;
/// Members of `tracestate`, by the norm.
const STATE_MEMBERS_MAX: usize = 32;

/// The span of a client that a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteContext {
    pub(in crate::trace) trace_id: TraceId,
    pub(in crate::trace) span_id: SpanId,
    /// What systems on the way have added; empty if nothing, or nothing that the norm allows.
    pub(in crate::trace) state: Arc<str>,
}

impl RemoteContext {
    /// Reads the headers `traceparent` and, if that is there, `tracestate`. None if there are none,
    /// or malformed ones: then the request is as any other.
    pub(crate) fn read<'h>(
        parent: Option<&'h [u8]>,
        state: impl FnOnce() -> Option<&'h [u8]>,
    ) -> Option<RemoteContext> {
        let (trace_id, span_id) = parse_parent(parent?)?;
        let state = state().and_then(parse_state).unwrap_or("");
        Some(RemoteContext {
            trace_id,
            span_id,
            state: state.into(),
        })
    }
}

/// `<version>-<trace id>-<span id>-<flags>`, in hexadecimal digits. Those may be capital, as
/// upstream takes them; a version that is not known may be followed by more, after a dash.
fn parse_parent(text: &[u8]) -> Option<(TraceId, SpanId)> {
    let mut parts = text.splitn(5, |byte| *byte == b'-');
    let mut part = || parts.next();
    let [version]: [u8; 1] = parse_hex(part()?)?;
    let trace_id: TraceId = parse_hex(part()?)?;
    let span_id: SpanId = parse_hex(part()?)?;
    // Whether the client samples its trace does not matter, as upstream.
    let _flags: [u8; 1] = parse_hex(part()?)?;
    let has_more = part().is_some();
    let is_known = version == 0;
    let is_valid = version != 0xff && !(is_known && has_more);
    (is_valid && trace_id != TraceId::default() && span_id != SpanId::default())
        .then_some((trace_id, span_id))
}

fn parse_hex<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != BYTES || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let high = char::from(*high).to_digit(16)?;
        let low = char::from(*low).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
}

/// Members `<key>=<value>` with commas between them.
fn parse_state(text: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(text).ok()?;
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    if !is_plain || text.len() > STATE_BYTES_MAX {
        return None;
    }
    let members = || {
        text.split(',')
            .map(str::trim)
            .filter(|member| !member.is_empty())
    };
    let is_valid = members().count() <= STATE_MEMBERS_MAX
        && members().all(|member| {
            member
                .split_once('=')
                .is_some_and(|(key, value)| is_key(key) && !value.contains('='))
        });
    is_valid.then_some(text)
}

fn is_key(key: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    !key.is_empty() && key.bytes().all(is_allowed)
}

/// The `traceparent` of what happens below a span. It is sampled, or there would be no span.
pub(in crate::trace) fn parent_text(trace_id: &TraceId, span_id: &SpanId) -> String {
    let mut text = String::with_capacity(55);
    text.push_str("00-");
    put_hex(&mut text, trace_id);
    text.push('-');
    put_hex(&mut text, span_id);
    text.push_str("-01");
    text
}

fn put_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing into a String does not fail.
        let _ = write!(text, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn read(parent: Option<&str>, state: Option<&str>) -> Option<RemoteContext> {
        RemoteContext::read(parent.map(str::as_bytes), || state.map(str::as_bytes))
    }

    /// What the real Triton takes and refuses, but for what follows a later version.
    #[test]
    fn parents() {
        let zeros = "0".repeat(32);
        for (parent, is_valid) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-00"), true),
            (format!("00-{TRACE}-{SPAN}-09"), true),
            (format!("00-{TRACE}-{SPAN}-01").to_uppercase(), true),
            (format!("01-{TRACE}-{SPAN}-01"), true),
            (
                format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be"),
                true,
            ),
            (format!("00-{TRACE}-{SPAN}-01-more"), false),
            (format!("00-{TRACE}-{SPAN}-01-"), false),
            (format!("ff-{TRACE}-{SPAN}-01"), false),
            (format!("00-{zeros}-{SPAN}-01"), false),
            (format!("00-{TRACE}-{}-01", &zeros[..16]), false),
            (format!("00-{TRACE}-{SPAN}-zz"), false),
            (format!("00-{TRACE}-{SPAN}-1"), false),
            (format!("00-{TRACE}-{SPAN}"), false),
            (format!("0-{TRACE}-{SPAN}-01"), false),
            (format!("00-{TRACE}1-{SPAN}-01"), false),
            (format!("00-{}-{SPAN}-01", &TRACE[1..]), false),
            (format!("00-{TRACE}-{SPAN}0-01"), false),
            (format!("00-{}é-{SPAN}-01", &TRACE[2..]), false),
            (format!("00_{TRACE}_{SPAN}_01"), false),
            ("00-0af-b7-01".to_owned(), false),
            ("-".to_owned(), false),
            (String::new(), false),
        ] {
            let context = read(Some(&parent), None);
            assert_eq!(context.is_some(), is_valid, "{parent}");
            if let Some(RemoteContext {
                trace_id,
                span_id,
                state,
            }) = context
            {
                assert_eq!(
                    parent_text(&trace_id, &span_id),
                    format!("00-{TRACE}-{SPAN}-01")
                );
                assert_eq!(&*state, "");
            }
        }
        assert_eq!(read(None, Some("a=b")), None);
    }

    #[test]
    fn states() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let members = |count| vec!["a=b"; count].join(",");
        let (many, too_many) = (members(32), members(33));
        let long = |length: usize| format!("a={}", "x".repeat(length - 2));
        for (state, is_kept) in [
            ("x=y", true),
            ("x=y,z=1", true),
            ("tenant@system=a b, x=\"\\", true),
            ("a=b,,c=", true),
            (&many, true),
            (&too_many, false),
            (&long(STATE_BYTES_MAX), true),
            (&long(STATE_BYTES_MAX + 1), false),
            ("x", false),
            ("=y", false),
            ("X=y", false),
            ("x=y=z", false),
            ("x=\u{e9}", false),
            ("x=\u{7f}", false),
        ] {
            let context = read(Some(&parent), Some(state)).unwrap();
            assert_eq!(&*context.state, if is_kept { state } else { "" }, "{state}");
        }
    }
}
