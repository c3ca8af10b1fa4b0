//! Frames of HTTP/2 behind a preface, whole and in pieces, with bodies queued and in readers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((size, bytes)) = input.split_first() {
        conch_http2::fuzz::frames(bytes, usize::from(*size));
    }
});
