//! Operations that both protocols share, as engine-level answers. The protocols only render them.
//!
//! Called on a shard; nothing here blocks.

mod readiness;

use std::sync::Arc;

use conch_engine::server::Server;
use conch_engine::stats::ModelStatistics;
use conch_engine::{Error, ModelVersion};

pub(crate) use readiness::Patient;

/// One tensor of a model's metadata.
pub(crate) struct TensorMetadata<'m> {
    pub(crate) name: &'m str,
    pub(crate) data_type: &'static str,
    /// With the batch dimension of a batching model.
    pub(crate) shape: Vec<i64>,
}

/// A model's metadata.
pub(crate) struct ModelMetadata<'m> {
    pub(crate) name: &'m str,
    /// The version asked for, or all that are ready.
    pub(crate) versions: Vec<i64>,
    pub(crate) platform: &'m str,
    pub(crate) inputs: Vec<TensorMetadata<'m>>,
    pub(crate) outputs: Vec<TensorMetadata<'m>>,
}

/// A version as clients write it: empty for the highest ready one.
///
/// # Errors
/// INVALID_ARG in upstream's words.
pub(crate) fn parse_version(text: &str) -> Result<Option<i64>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let version = leading_number(text).ok_or_else(|| {
        Error::invalid(format!(
            "failed to get model version from specified version string '{text}' (details: stol), version should be an integral value > 0"
        ))
    })?;
    if version < 0 {
        return Err(Error::invalid(format!(
            "invalid model version specified '{text}' , version should be an integral value > 0"
        )));
    }
    Ok(Some(version))
}

/// The refusal of a request that names one of several repositories; comes before any other.
pub(crate) fn repository_name_refusal() -> Error {
    Error::unsupported("'repository_name' specification is not supported")
}

/// What C's `strtol` reads, as upstream does: blanks before and anything after the number are ignored. None if there is no number or it
/// does not fit.
fn leading_number(text: &str) -> Option<i64> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\u{b}', '\u{c}']);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = digits
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    text.get(..text.len() - digits.len() + end)?.parse().ok()
}

/// Describes `model`, which was found under `requested`.
///
/// # Errors
/// The lookup's, if the model vanished meanwhile.
pub(crate) fn model_metadata<'m>(
    server: &Server,
    model: &'m Arc<ModelVersion>,
    requested: Option<i64>,
) -> Result<ModelMetadata<'m>, Error> {
    let versions = match requested {
        Some(version) => vec![version],
        None => server.registry().snapshot().ready_versions(&model.name)?,
    };
    let config = &model.config;
    let describe = |specs: &'m [conch_config::TensorSpec]| {
        specs
            .iter()
            .map(|spec| {
                let batch = config.is_batching().then_some(-1);
                TensorMetadata {
                    name: &spec.name,
                    data_type: spec.data_type.name(),
                    shape: batch.into_iter().chain(spec.dims.iter().copied()).collect(),
                }
            })
            .collect()
    };
    Ok(ModelMetadata {
        name: &model.name,
        versions,
        platform: config.platform_or_backend(),
        inputs: describe(&config.inputs),
        outputs: describe(&config.outputs),
    })
}

/// Numbers of one model's ready versions, or of all models without a name.
///
/// # Errors
/// INVALID_ARG in upstream's words if the model or version is not ready.
pub(crate) fn statistics(
    server: &Server,
    name: &str,
    version: Option<i64>,
) -> Result<Vec<ModelStatistics>, Error> {
    if name.is_empty() {
        return server.statistics(None, None);
    }
    let ready_versions = server
        .registry()
        .snapshot()
        .ready_versions(name)
        .unwrap_or_default();
    if ready_versions.is_empty() {
        return Err(Error::invalid(format!(
            "requested model '{name}' is not available"
        )));
    }
    if version.is_some_and(|version| !ready_versions.contains(&version)) {
        return Err(Error::invalid(format!(
            "requested model version is not available for model '{name}'"
        )));
    }
    server.statistics(Some(name), version)
}

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
                    "failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0",
                ),
            ),
            (
                "99999999999999999999",
                Err(
                    "failed to get model version from specified version string '99999999999999999999' (details: stol), version should be an integral value > 0",
                ),
            ),
            (
                "-1",
                Err(
                    "invalid model version specified '-1' , version should be an integral value > 0",
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
