//! The configuration and the files that a load request brings, and bounds for reading them.

use std::sync::Arc;

use conch_engine::Error;
use conch_memory::{Budget, Charge};

/// What a load puts in the place of the repository's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// A model configuration as JSON, instead of the model's file.
    pub config: Option<String>,
    /// Path below the model's directory (`1/model.onnx`, with or without the prefix `file:`) and
    /// contents: these are then all files that the model has.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Overrides {
    pub fn is_empty(&self) -> bool {
        self.config.is_none() && self.files.is_empty()
    }

    /// Charges what the configuration takes while it is read: each of its values becomes several
    /// messages and names. Files are charged by the service that received them.
    ///
    /// # Errors
    /// INVALID_ARG for a configuration or a number of files beyond what models have;
    /// RESOURCE_EXHAUSTED if memory is short.
    pub(crate) fn charge(&self, budget: &Arc<Budget>) -> Result<Charge, Error> {
        if self.files.len() > LOAD_FILES_MAX {
            return Err(Error::invalid(format!(
                "a load request brings at most {LOAD_FILES_MAX} files, got {}",
                self.files.len()
            )));
        }
        let mut charge = Charge::empty(budget);
        let Some(config) = &self.config else {
            return Ok(charge);
        };
        if config.len() > LOAD_CONFIG_BYTES_MAX {
            return Err(Error::invalid(format!(
                "load parameter 'config' has at most {LOAD_CONFIG_BYTES_MAX} bytes, got {}",
                config.len()
            )));
        }
        let values = separators(config);
        if values > LOAD_CONFIG_VALUES_MAX {
            return Err(Error::invalid(format!(
                "load parameter 'config' has at most {LOAD_CONFIG_VALUES_MAX} names and values, \
                 got about {values}"
            )));
        }
        let bytes = config.len().saturating_add(values * BYTES_PER_VALUE);
        let covered = charge.cover(bytes as u64);
        covered.map_err(|_| {
            Error::exhausted("the server has no memory left to read the configuration of this load")
        })?;
        Ok(charge)
    }
}

/// How many names and values a JSON text has, by what stands between them outside of strings. Too
/// many rather than too few.
fn separators(text: &str) -> usize {
    let is_separator = |byte: u8| matches!(byte, b',' | b':' | b'[' | b'{');
    let mut count = 0;
    let mut quote = None;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => {
                bytes.next();
            }
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            // A comment: quotes in it open nothing. So everything counts from here on.
            (None, b'/' | b'#') => return count + bytes.filter(|byte| is_separator(*byte)).count(),
            (None, byte) => count += usize::from(is_separator(byte)),
        }
    }
    count
}

/// More than any model repository has of one model.
pub const LOAD_FILES_MAX: usize = 4_096;
/// Twenty times the largest configurations seen.
const LOAD_CONFIG_BYTES_MAX: usize = 4 << 20;
/// A tensor has about twenty: thousands of them fit. Reading so many takes about a second.
const LOAD_CONFIG_VALUES_MAX: usize = 128 << 10;
/// Measured, with 100,000 parameters: 2.5 KB for each, with four separators.
const BYTES_PER_VALUE: usize = 640;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_load_brings_is_bounded_and_booked() {
        let with = |config: String| Overrides {
            config: Some(config),
            files: Vec::new(),
        };
        let many = |count: usize| with(format!("{{\"a\":[{}0]}}", "0,".repeat(count)));
        let budget = Budget::new(200 << 20);
        let small = with(String::from(
            r#"{"name":"a, \" b","input":[{"dims":[1,2]}]}"#,
        ));
        let charged = small.charge(&budget).unwrap().reserved_bytes();
        assert!(charged > 0 && charged < 1 << 20);
        assert_eq!(budget.used_bytes(), 0, "given back");
        assert_eq!(
            Overrides::default()
                .charge(&budget)
                .unwrap()
                .reserved_bytes(),
            0
        );
        let refusals = [
            (
                many(LOAD_CONFIG_VALUES_MAX),
                "load parameter 'config' has at most 131072 names and values, got about 131075",
            ),
            (
                with("x".repeat(LOAD_CONFIG_BYTES_MAX + 1)),
                "load parameter 'config' has at most 4194304 bytes, got 4194305",
            ),
            (
                Overrides {
                    config: None,
                    files: vec![Default::default(); LOAD_FILES_MAX + 1],
                },
                "a load request brings at most 4096 files, got 4097",
            ),
        ];
        for (overrides, expected) in refusals {
            assert_eq!(
                overrides.charge(&budget).unwrap_err(),
                Error::invalid(expected)
            );
        }
        let large = many(LOAD_CONFIG_VALUES_MAX - 3);
        let charge = large.charge(&budget).unwrap();
        assert_eq!(
            large.charge(&Budget::new(1 << 20)).unwrap_err().code,
            conch_engine::Code::Exhausted
        );
        drop(charge);
    }

    #[test]
    fn separators_within_strings_do_not_count() {
        let table = [
            ("", 0),
            ("{}", 1),
            (r#"{"a":1,"b":[2,3]}"#, 6),
            (r#"{"a":",:[{","b":"\",,"}"#, 4),
            ("{'a':',,\"'}", 2),
            ("{ // don't, \n \"a\": \",\" }", 4),
        ];
        for (text, expected) in table {
            assert_eq!(separators(text), expected, "{text}");
        }
    }
}
