//! Operations that both protocols share, as engine-level answers. The protocols only render them.
//!
//! Called on a shard; nothing here blocks.

mod classes;
mod logging;
mod readiness;
pub(crate) mod regions;
mod tracing;

use conch_engine::{Error, truncated};

use crate::strtol;

pub(crate) use classes::Classes;
pub(crate) use conch_control::metadata::{TensorMetadata, model_metadata, statistics};
pub(crate) use logging::{LogChanges, log_file_refusal, note_refusal};
pub(crate) use readiness::ProbeWithTimeout;
pub(crate) use tracing::{
    FILE_MODE, SPAN_MODE, check_traced_model, level_names, parse_count, parse_levels,
    parse_unsigned, trace_file_refusal,
};

/// A version as clients write it: empty for the highest ready one.
///
/// # Errors
/// INVALID_ARG in upstream's words.
pub(crate) fn parse_version(text: &str) -> Result<Option<i64>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let version: i64 = strtol::parse(text).map_err(|_| {
        Error::invalid(format!(
            "failed to get model version from specified version string '{text}' (details: stol), \
             version should be an integral value > 0",
            text = truncated(&text)
        ))
    })?;
    if version < 0 {
        return Err(Error::invalid(format!(
            "invalid model version specified '{text}' , version should be an integral value > 0",
            text = truncated(&text)
        )));
    }
    Ok(Some(version))
}

/// The refusal of a request that names one of several repositories; comes before any other.
pub(crate) fn repository_name_refusal() -> Error {
    Error::unsupported("'repository_name' specification is not supported")
}

/// The refusal of a control request of so many bytes, beyond [`CONTROL_BYTES_MAX`].
pub(crate) fn too_large(bytes: usize) -> Error {
    Error::invalid(format!(
        "a request of this kind has at most {CONTROL_BYTES_MAX} bytes, got {bytes}"
    ))
}

/// For requests that name and set things (index, unload, settings, registrations): thousands of
/// names fit. Loads may bring files.
pub(crate) const CONTROL_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, expected) in [
            ("", Ok(None)),
            ("1", Ok(Some(1))),
            ("0", Ok(Some(0))),
            (
                "x",
                Err(
                    "failed to get model version from specified version string 'x' (details: \
                     stol), version should be an integral value > 0",
                ),
            ),
            (
                "99999999999999999999",
                Err("failed to get model version from specified version string \
                     '99999999999999999999' (details: stol), version should be an integral value > \
                     0"),
            ),
            (
                "-1",
                Err(
                    "invalid model version specified '-1' , version should be an integral value > \
                     0",
                ),
            ),
        ] {
            assert_eq!(
                parse_version(text).map_err(|error| error.message.into_owned()),
                expected.map_err(str::to_owned)
            );
        }
    }
}
