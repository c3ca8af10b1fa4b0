//! A file of callers, and after a byte of zeros the header of somebody who is judged by it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let (text, header) = (parts.next(), parts.next());
    conch_frontend::fuzz::auth_file(text.unwrap_or_default(), header.unwrap_or(b"Bearer token"));
});
