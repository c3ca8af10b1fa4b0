//! The steps of a configuration between its file and its backend, in upstream's order.

use std::path::Path;

use conch_proto::inference::ModelConfig;

use crate::{ConfigError, complete_backend, normalize, validate, validate_io, validate_name};

/// The circumstances of a load.
#[derive(Clone, Copy, Debug)]
pub struct Preparation<'a> {
    /// The name that the model is to have.
    pub name: &'a str,
    /// The model's directory, after repository agents had their say.
    pub path: &'a Path,
    /// The name comes from a mapping and replaces the configured one; else both must be equal.
    pub is_mapped: bool,
    /// Not in strict mode: the backend may complete inputs and outputs later.
    pub may_complete: bool,
}

/// Completes what the server can, normalises, and validates all that a backend does not complete.
/// In strict mode also inputs and outputs. Reads the model's directory: blocks.
///
/// # Errors
/// Those of [`complete_backend`], [`validate`], [`validate_io`] and [`validate_name`].
pub fn prepare(config: &mut ModelConfig, preparation: &Preparation<'_>) -> Result<(), ConfigError> {
    complete_backend(config, preparation.name, preparation.path)?;
    normalize(config);
    validate(config)?;
    if !preparation.may_complete {
        validate_io(config)?;
    }
    if preparation.is_mapped {
        config.name = preparation.name.to_owned();
        return Ok(());
    }
    validate_name(config, preparation.name)
}
