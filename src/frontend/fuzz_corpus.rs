//! The inputs of the fuzz targets (`tests/fuzz`), and mutations of them by seed, without a
//! fuzzer: what `scripts/fuzz` looks for in hours is looked for here in a moment, in every run of
//! the tests.

use std::path::PathBuf;

use crate::fuzz;
use crate::testing::Random;

const MUTANTS: usize = 2_000;

/// What the target of that name in `tests/fuzz/targets` does.
fn run(target: &str, input: &[u8]) {
    match (target, input) {
        ("http1", [size, bytes @ ..]) => fuzz::http_request(bytes, usize::from(*size)),
        ("json_infer", [low, high, body @ ..]) => {
            let tail_bytes = u16::from_le_bytes([*low, *high & 0x7f]);
            fuzz::json_infer(body, tail_bytes.into(), high & 0x80 != 0);
        }
        ("grpc_infer", [size, message @ ..]) => fuzz::grpc_infer(message, usize::from(*size)),
        ("auth_file", input) => {
            let place = input.iter().position(|byte| *byte == 0);
            let (text, header) = input.split_at(place.unwrap_or(input.len()));
            fuzz::auth_file(text, header.get(1..).unwrap_or(b"Bearer token"));
        }
        ("trace_context", input) => {
            let place = input.iter().position(|byte| *byte == b'\n');
            let (parent, state) = input.split_at(place.unwrap_or(input.len()));
            fuzz::trace_context(parent, state.get(1..).unwrap_or_default());
        }
        _ => {}
    }
}

/// The files of a target, those that once failed first.
fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz");
    let folders = ["kept", "corpus"].map(|folder| root.join(folder).join(target));
    let found = folders.iter().filter_map(|folder| folder.read_dir().ok());
    let files = found.flatten().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.next() % 4 {
        let at = random.next() as usize % (input.len() + 1);
        let byte = random.next() as u8;
        match (random.next() % 5, input.get_mut(at)) {
            (0, Some(place)) => *place = byte,
            (1, Some(place)) => *place ^= 1 << (byte % 8),
            (2, _) => input.truncate(at),
            (3, _) => input.insert(at.min(input.len()), byte),
            _ => {
                let end = (at + usize::from(byte % 32)).min(input.len());
                let copied: Vec<u8> = input.drain(at.min(end)..end).collect();
                let place = random.next() as usize % (input.len() + 1);
                input.splice(place..place, copied);
            }
        }
    }
}

#[test]
fn no_input_breaks_a_target() {
    for target in [
        "http1",
        "json_infer",
        "grpc_infer",
        "auth_file",
        "trace_context",
    ] {
        let inputs = inputs(target);
        assert!(!inputs.is_empty(), "{target} has no corpus");
        for (path, input) in inputs {
            run(target, &input);
            for seed in 0..MUTANTS {
                let mut mutant = input.clone();
                mutate(&mut mutant, &mut Random::new(seed as u64));
                let outcome = std::panic::catch_unwind(|| run(target, &mutant));
                assert!(
                    outcome.is_ok(),
                    "{}, seed {seed}: {mutant:?}",
                    path.display()
                );
            }
        }
    }
}
