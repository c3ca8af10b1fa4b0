//! The message of an inference over gRPC, whole and in pieces, beside what prost makes of it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((size, message)) = input.split_first() {
        conch_frontend::fuzz::grpc_infer(message, usize::from(*size));
    }
});
