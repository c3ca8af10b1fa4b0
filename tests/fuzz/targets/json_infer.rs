//! The body of an inference over HTTP: JSON, then binary tensors. The first bytes say how long
//! those are, and whether integers are read strictly.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let [low, high, body @ ..] = input {
        let tail_bytes = u16::from_le_bytes([*low, *high & 0x7f]);
        conch_frontend::fuzz::json_infer(body, tail_bytes.into(), high & 0x80 != 0);
    }
});
