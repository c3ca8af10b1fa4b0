//! The headers of a trace, `traceparent` and, after a line feed, `tracestate`, which spans go on
//! with.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut lines = input.splitn(2, |byte| *byte == b'\n');
    let (parent, state) = (lines.next(), lines.next());
    conch_frontend::fuzz::trace_context(parent.unwrap_or_default(), state.unwrap_or_default());
});
