//! A request of HTTP/1: its head, whole and in pieces, its route and its chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((size, bytes)) = input.split_first() {
        conch_frontend::fuzz::http_request(bytes, usize::from(*size));
    }
});
