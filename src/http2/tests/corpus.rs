//! The inputs of the fuzz target (`tests/fuzz`), and mutations of them by seed, without a fuzzer.

use std::path::PathBuf;

use super::*;
use crate::fuzz;

const MUTANTS: usize = 4000;

fn run(input: &[u8]) {
    if let [size, bytes @ ..] = input {
        fuzz::frames(bytes, usize::from(*size));
    }
}

#[test]
fn inputs_of_the_fuzz_target_and_mutants_of_them() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz");
    let folders = ["kept/http2", "corpus/http2"].map(|folder| root.join(folder));
    let files = folders
        .iter()
        .filter_map(|folder| folder.read_dir().ok())
        .flatten();
    let mut inputs: Vec<Vec<u8>> = files
        .map(|entry| std::fs::read(entry.expect("a file").path()).expect("readable"))
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 3, "the corpus is there");
    inputs.iter().for_each(|input| run(input));
    let mut random = Random(5);
    for _ in 0..MUTANTS {
        let mut mutant = inputs[random.below(inputs.len())].clone();
        for _ in 0..1 + random.below(4) {
            let place = random.below(mutant.len());
            match random.below(4) {
                0 => mutant[place] = random.below(256) as u8,
                1 => mutant[place] ^= 1 << random.below(8),
                2 => mutant.truncate(place.max(1)),
                _ => {
                    let again = mutant[place..].to_vec();
                    mutant.extend(again);
                }
            }
        }
        run(&mutant);
    }
}
