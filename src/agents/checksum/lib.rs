//! The checksum agent: a model is loaded only if its files are what its configuration says.
//!
//! Each parameter of the agent names an algorithm and a file below the model's directory, and gives
//! the sum in hexadecimal: `parameters { key: "MD5:1/model.onnx" value: "…" }`. MD5 finds damage
//! and mix-ups. It does not keep out who wants to deceive.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use conch_backend_sdk as sdk;
use md5::{Digest, Md5};
use sdk::Error;
use sdk::agent::{Action, Agent, AgentModel};

sdk::export_agent!(Checksum);

/// See the crate.
pub struct Checksum;

impl Agent for Checksum {
    fn act(model: &AgentModel<'_>, action: Action) -> Result<(), Error> {
        if action != Action::Load {
            return Ok(());
        }
        let directory = model.location()?;
        let parameters = model.parameters()?;
        parameters
            .iter()
            .try_for_each(|(key, wanted)| check(&directory, key, wanted))
    }
}

/// Checks one file, in upstream's words.
fn check(directory: &Path, key: &str, wanted: &str) -> Result<(), Error> {
    let (algorithm, file) = key
        .split_once(':')
        .ok_or_else(|| Error::invalid(format!("failed to parse key: {key}")))?;
    if !algorithm.eq_ignore_ascii_case("md5") {
        return Err(Error::unsupported(format!(
            "Unsupported checksum algorithm: {algorithm}"
        )));
    }
    let got = md5_of(&directory.join(file)).map_err(|cause| {
        Error::invalid(format!("failed to open text file for read {file}: {cause}"))
    })?;
    if got.eq_ignore_ascii_case(wanted.trim()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "Mismatched MD5 hash for file {file}, expect: {wanted}, got: {got}"
    )))
}

/// The sum in lower-case hexadecimal. Reads in pieces: weights can be larger than memory.
fn md5_of(path: &Path) -> io::Result<String> {
    // To open a FIFO would wait for whoever writes into it.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut file = File::open(path)?;
    let mut digest = Md5::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = file.read(&mut piece)?;
        match piece.get(..count) {
            Some(bytes) if !bytes.is_empty() => digest.update(bytes),
            _ => break,
        }
    }
    let sum = digest.finalize();
    Ok(sum.iter().map(|byte| format!("{byte:02x}")).collect())
}

const PIECE_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_decide() {
        let directory = std::env::temp_dir().join(format!("conch-checksum-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("1")).unwrap();
        std::fs::write(directory.join("empty"), b"").unwrap();
        std::fs::write(directory.join("1/abc"), b"abc").unwrap();
        std::fs::write(directory.join("1/long"), vec![b'a'; PIECE_BYTES + 1]).unwrap();
        let abc = "900150983cd24fb0d6963f7d28e17f72";
        for (key, wanted, expected) in [
            ("MD5:empty", "d41d8cd98f00b204e9800998ecf8427e", Ok(())),
            ("MD5:1/abc", abc, Ok(())),
            ("md5:1/abc", "900150983CD24FB0D6963F7D28E17F72", Ok(())),
            // As md5sum says.
            (
                "MD5:1/long",
                "67e4b39e40ad2fa8a5aa5a5ddca85d21",
                Err("Mismatched"),
            ),
            (
                "MD5:empty",
                abc,
                Err(
                    "Mismatched MD5 hash for file empty, expect: 900150983cd24fb0d6963f7d28e17f72, \
                     got: d41d8cd98f00b204e9800998ecf8427e",
                ),
            ),
            (
                "MD5:none",
                abc,
                Err("failed to open text file for read none: "),
            ),
            ("MD5:1", abc, Err("failed to open text file for read 1: ")),
            (
                "SHA256:empty",
                abc,
                Err("Unsupported checksum algorithm: SHA256"),
            ),
            ("empty", abc, Err("failed to parse key: empty")),
        ] {
            match (check(&directory, key, wanted), expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(text)) => assert!(error.message().starts_with(text), "{error}"),
                (got, _) => panic!("{key}: {got:?}"),
            }
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
