//! Loading and unloading the models of a multi-model endpoint. Blocks as long as models take; runs
//! on a thread of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_control::Overrides;
use conch_control::server::Server;
use conch_engine::{Code, Error, truncated};
use conch_log as log;

use super::catalog::{CatalogEntry, ClaimConflict, ModelCatalog};
use super::place;

/// As long as upstream waits for a model to be gone: SageMaker itself gives up after 360 s.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(350);
const UNLOAD_POLL: Duration = Duration::from_millis(20);

/// Why there is no plain success: an HTTP status, and a message unless it is empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ControlFailure {
    pub(super) status: u16,
    pub(super) message: String,
}

impl ControlFailure {
    fn new(status: u16, error: &Error) -> ControlFailure {
        ControlFailure {
            status,
            message: error.message.clone().into_owned(),
        }
    }
}

/// What a load request asks for.
pub(super) struct LoadRequest {
    /// SageMaker's name of the model.
    pub(super) name: Box<str>,
    pub(super) url: String,
    /// X-Amzn-SageMaker-Target-Model, which the model is called by in this server.
    pub(super) target: Option<Box<str>>,
}

pub(super) fn load(
    server: &Server,
    catalog: &Arc<ModelCatalog>,
    root: &Path,
    load: LoadRequest,
) -> Result<(), ControlFailure> {
    let target = load.target.unwrap_or_else(|| load.name.clone());
    log::info!("Loading SageMaker TargetModel: {target}");
    check_name(&load.name).map_err(|error| ControlFailure::new(400, &error))?;
    let place = place::find(root, &load.url).map_err(|error| ControlFailure::new(400, &error))?;
    let claim = catalog
        .claim_new(&load.name)
        .map_err(|conflict| match conflict {
            ClaimConflict::TooMany => ControlFailure {
                status: 507,
                message: "the server has too many models: Out of memory for more".to_owned(),
            },
            ClaimConflict::Taken | ClaimConflict::Missing => ControlFailure {
                status: 409,
                message: format!("model '{}' is loaded already", truncated(&load.name)),
            },
        })?;
    let mapping = vec![(place.directory, target.clone().into())];
    server
        .register_repository(&place.repository, mapping)
        .map_err(|error| ControlFailure::new(conflict_or(&error, 400), &error))?;
    if let Err(error) = server.load_model(&target, Overrides::default()) {
        if let Err(error) = server.unregister_repository(&place.repository) {
            log::error!("after the failed load of '{target}': {error}");
        }
        let status = if is_out_of_memory(&error.message) {
            507
        } else {
            400
        };
        return Err(ControlFailure::new(conflict_or(&error, status), &error));
    }
    claim.publish(Some(CatalogEntry {
        target,
        repository: place.repository.into(),
    }));
    Ok(())
}

pub(super) fn unload(
    server: &Server,
    catalog: &Arc<ModelCatalog>,
    name: &str,
) -> Result<(), ControlFailure> {
    let (claim, entry) = catalog
        .claim_known(name)
        .map_err(|conflict| match conflict {
            ClaimConflict::Missing | ClaimConflict::TooMany => ControlFailure {
                status: 404,
                message: String::new(),
            },
            ClaimConflict::Taken => ControlFailure {
                status: 409,
                message: format!(
                    "model '{name}' is being unloaded already",
                    name = truncated(&name)
                ),
            },
        })?;
    log::info!("Unloading SageMaker TargetModel: {}", entry.target);
    // What an ensemble is of was loaded with it.
    server
        .unload_model(&entry.target, true)
        .map_err(|error| ControlFailure::new(400, &error))?;
    let deadline = Instant::now() + UNLOAD_TIMEOUT;
    while !is_gone(server, &entry.target) {
        if Instant::now() >= deadline {
            log::error!(
                "'{}' is not unloaded within {UNLOAD_TIMEOUT:?}",
                entry.target
            );
            break;
        }
        std::thread::sleep(UNLOAD_POLL);
    }
    let unregistered = server
        .unregister_repository(&entry.repository)
        .map_err(|error| ControlFailure::new(400, &error));
    claim.publish(None);
    unregistered
}

/// No version of `name` is there any more, or on its way out.
fn is_gone(server: &Server, name: &str) -> bool {
    server
        .index(false)
        .iter()
        .filter(|row| row.name == name && row.version.is_some())
        .all(|row| row.state == "UNAVAILABLE")
}

fn conflict_or(error: &Error, status: u16) -> u16 {
    match error.code {
        Code::AlreadyExists => 409,
        _ => status,
    }
}

/// SageMaker's name of a model is part of the paths by which it is asked for. What it is called in
/// this server, loading checks.
fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::invalid(
            "Model name cannot be empty. Please enter a valid name to deploy.",
        ));
    }
    let is_path = name.contains(['/', '\\']) || name == "." || name == "..";
    if is_path || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "invalid model name '{}', model name must not contain path traversal characters",
            truncated(&name.escape_debug().to_string())
        )));
    }
    Ok(())
}

/// Whether a message says that memory or disk is full, in the words that upstream looks for.
pub(super) fn is_out_of_memory(message: &str) -> bool {
    const WORDS: [&str; 17] = [
        "CUDA out of memory",
        "CUDA_OUT_OF_MEMORY",
        "Out of memory",
        "Out Of Memory",
        "out of memory",
        "MemoryError",
        "OutOfMemory",
        "OOM",
        "Dst tensor is not initialized",
        "Src tensor is not initialized",
        "CNMEM_STATUS_OUT_OF_MEMORY",
        "CUDNN_STATUS_NOT_INITIALIZED",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUBLAS_STATUS_NOT_INITIALIZED",
        "Failed to allocate memory",
        "failed to allocate memory",
        "No space left on device",
    ];
    WORDS.iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in [
            "model.tar.gz",
            "model..",
            "...",
            "..model",
            "a b",
            "\u{2025}",
        ] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "a/b", "../a", "a\\b", "a\0", "a\n"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn what_upstream_takes_for_out_of_memory() {
        for (message, expected) in [
            ("load failed: CUDA out of memory. Tried", true),
            ("x: No space left on device", true),
            ("BOOM", true),
            ("memory", false),
            ("", false),
        ] {
            assert_eq!(is_out_of_memory(message), expected, "{message}");
        }
    }
}
