//! From what became of a model to what is to be said of it.

use std::path::{Path, PathBuf};

use conch_config::{ConfigError, ModelConfig};
use conch_engine::Error;
use conch_engine::model::registry::{ModelId, UNLOADED, VersionState};

use super::ModelPlace;
use super::report::{CheckFault, CheckState, ModelReport};
use super::stand_in::COMPLETED_BY_BACKEND;
use crate::loader::{DUPLICATE, LoadFailure, ModelOutcome};
use crate::repository::{misplaced, model_directory, remote};

/// A name that several repositories have.
pub(super) fn duplicate(id: &ModelId, paths: &[PathBuf]) -> ModelReport {
    let first = paths.first().map_or(Path::new(""), PathBuf::as_path);
    let errors = paths.iter().map(|path| CheckFault::of(path, DUPLICATE));
    ModelReport {
        is_loadable: false,
        ..report(id, first, Vec::new(), errors.collect(), Vec::new())
    }
}

/// What is to be said of a model that was loaded, or looked at with stand-ins for its backend:
/// `examined` then is what these leave out.
pub(super) fn judge(
    place: &ModelPlace<'_>,
    outcome: &ModelOutcome,
    examined: Option<&ModelConfig>,
) -> ModelReport {
    let mut errors = Vec::new();
    let mut is_open = false;
    match &outcome.failure {
        None => {}
        Some(LoadFailure::Duplicate) => errors.push(CheckFault::of(place.directory, DUPLICATE)),
        Some(LoadFailure::Refused(error)) => errors.push(refusal(place, error)),
        // Whether it fits a model that is not known is not known, either.
        Some(LoadFailure::Invalid(error)) if error.message.contains(COMPLETED_BY_BACKEND) => {
            is_open = true;
        }
        Some(LoadFailure::Invalid(error)) => {
            errors.push(CheckFault::of(file_of(place), &*error.message));
        }
        Some(LoadFailure::Versionless) => {
            let message = format!(
                "at least one version must be available under the version policy of model '{}'",
                place.id.name
            );
            errors.push(CheckFault::of(place.directory, message));
        }
    }
    for (version, state) in &outcome.versions {
        match state {
            VersionState::Unavailable(reason) if reason.contains(COMPLETED_BY_BACKEND) => {
                is_open = true;
            }
            VersionState::Unavailable(reason) if reason != UNLOADED => {
                let message = format!("version {version}: {reason}");
                // What a backend says is about its files rather than about the configuration.
                let file = match examined {
                    Some(_) => file_of(place),
                    None => place.directory.join(version.to_string()),
                };
                errors.push(CheckFault::of(file, message));
            }
            _ => {}
        }
    }
    let mut notes = Vec::new();
    if !errors.is_empty() && remote::uri(place.directory).is_none() {
        notes.extend(misplaced::of_model(place.directory));
    }
    for version in outcome.missing_versions() {
        notes.push(format!(
            "version {version} is specified, but the version directory is not present"
        ));
    }
    if let Some(config) = examined {
        notes.extend(left_out(config, is_open).map(String::from));
    }
    let versions = outcome.versions.iter().map(|(version, _)| *version);
    ModelReport {
        is_loadable: !matches!(outcome.failure, Some(LoadFailure::Refused(_))),
        ..report(place.id, place.directory, versions.collect(), errors, notes)
    }
}

fn report(
    id: &ModelId,
    directory: &Path,
    versions: Vec<i64>,
    errors: Vec<CheckFault>,
    notes: Vec<String>,
) -> ModelReport {
    ModelReport {
        repository: directory.parent().unwrap_or(Path::new("")).to_owned(),
        name: id.name.to_string(),
        versions,
        state: match errors.is_empty() {
            true => CheckState::Ok,
            false => CheckState::Failed,
        },
        errors,
        notes,
        id: id.clone(),
        directory: directory.to_owned(),
        is_loadable: true,
    }
}

/// What is wrong with a configuration, at its place if its text cannot be read.
fn refusal(place: &ModelPlace<'_>, error: &Error) -> CheckFault {
    let file = file_of(place);
    let is_local = remote::uri(place.directory).is_none();
    // The loader keeps the words only. It is the same reader.
    let read = is_local.then(|| conch_config::load_file(&file, place.expands));
    match read {
        Some(Err(ConfigError {
            place: Some(fault), ..
        })) => CheckFault {
            file: Some(file),
            line: Some(fault.line),
            column: Some(fault.column),
            message: fault.what,
        },
        _ => CheckFault::of(file, &*error.message),
    }
}

/// The model's configuration file, or its directory if it has none.
fn file_of(place: &ModelPlace<'_>) -> PathBuf {
    let file = model_directory::config_file(place.directory, place.config_name);
    let file = file.ok().filter(|file| file.exists());
    file.unwrap_or_else(|| place.directory.to_owned())
}

/// What matters to a model, and shows only when it is loaded.
fn left_out(config: &ModelConfig, is_open: bool) -> impl Iterator<Item = &'static str> {
    let is_ensemble = !conch_config::needed_models(config).is_empty();
    let completion = match is_ensemble {
        true => {
            "the backend of one of its models completes that configuration: whether they fit shows \
             when they are loaded (--load)"
        }
        false => {
            "its backend completes the configuration: what comes of that shows when it is loaded \
             (--load)"
        }
    };
    let has_gpus = conch_config::without_gpus(&mut config.clone());
    let notes = [
        (is_open, completion),
        (
            has_gpus,
            "whether its GPUs are there shows when it is loaded (--load)",
        ),
        (
            config.model_repository_agents.is_some(),
            "its repository agents are asked when it is loaded (--load)",
        ),
    ];
    let notes = notes.into_iter().filter(|(is_so, _)| *is_so);
    notes.map(|(_, note)| note)
}
