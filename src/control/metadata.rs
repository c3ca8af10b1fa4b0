//! Metadata and statistics of models as values; each protocol renders them in its own way
//! (`documents` as JSON). Nothing here blocks.

use std::sync::Arc;

use conch_engine::model::stats::ModelStatistics;
use conch_engine::{Error, ModelVersion, truncated};
use serde::Serialize;

use crate::Server;
use crate::json::as_texts;

/// One tensor of a model's metadata.
#[derive(Serialize)]
pub struct TensorMetadata<'m> {
    pub name: &'m str,
    #[serde(rename = "datatype")]
    pub data_type: &'static str,
    /// With the batch dimension of a batching model.
    pub shape: Vec<i64>,
}

/// A model's metadata.
#[derive(Serialize)]
pub struct ModelMetadata<'m> {
    pub name: &'m str,
    /// The version asked for, or all that are ready.
    #[serde(serialize_with = "as_texts")]
    pub versions: Vec<i64>,
    pub platform: &'m str,
    pub inputs: Vec<TensorMetadata<'m>>,
    pub outputs: Vec<TensorMetadata<'m>>,
}

/// Describes `model`, which was found under `requested`.
///
/// # Errors
/// The lookup's, if the model vanished meanwhile.
pub fn model_metadata<'m>(
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
pub fn statistics(
    server: &Server,
    name: &str,
    version: Option<i64>,
) -> Result<Vec<ModelStatistics>, Error> {
    if name.is_empty() {
        server.check_serving()?;
        return server.statistics(None, None);
    }
    let ready_versions = server
        .registry()
        .snapshot()
        .ready_versions(name)
        .unwrap_or_default();
    if ready_versions.is_empty() {
        return Err(Error::invalid(format!(
            "requested model '{}' is not available",
            truncated(name)
        )));
    }
    if version.is_some_and(|version| !ready_versions.contains(&version)) {
        return Err(Error::invalid(format!(
            "requested model version is not available for model '{}'",
            truncated(name)
        )));
    }
    server.statistics(Some(name), version)
}
