//! Where a model's file is.

use std::path::{Path, PathBuf};

use crate::{Error, ModelContext};

/// The model's file in the version's folder: `default_model_filename`, or `name`, which is what the
/// engine's models are called. Either may be a folder that holds a file called `name`.
///
/// # Errors
/// `Unavailable` if it is not there.
pub fn model_file(context: &ModelContext, name: &str) -> Result<PathBuf, Error> {
    let configured = context.config().default_model_filename();
    find(
        context.name(),
        &context.version_directory(),
        configured,
        name,
    )
}

/// A model's folder in the version's folder, for engines whose models are one:
/// `default_model_filename`, or `name`.
///
/// # Errors
/// `Unavailable` if it is not there.
pub fn model_folder(context: &ModelContext, name: &str) -> Result<PathBuf, Error> {
    let configured = context.config().default_model_filename();
    let path = context.version_directory().join(configured.unwrap_or(name));
    found(context.name(), path)
}

fn find(
    model_name: &str,
    directory: &Path,
    configured: Option<&str>,
    name: &str,
) -> Result<PathBuf, Error> {
    let mut path = directory.join(configured.unwrap_or(name));
    if path.is_dir() {
        path.push(name);
    }
    found(model_name, path)
}

fn found(model_name: &str, path: PathBuf) -> Result<PathBuf, Error> {
    if path.exists() {
        return Ok(path);
    }
    Err(Error::unavailable(format!(
        "unable to find '{}' for model instance '{model_name}'",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_models_file() {
        let directory = std::env::temp_dir().join(format!("conch-model-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("nested.onnx")).unwrap();
        for file in ["model.onnx", "other.onnx", "nested.onnx/model.onnx"] {
            std::fs::write(directory.join(file), b"").unwrap();
        }
        for (name, expected) in [
            (None, Some("model.onnx")),
            (Some("other.onnx"), Some("other.onnx")),
            (Some("nested.onnx"), Some("nested.onnx/model.onnx")),
            (Some("absent.onnx"), None),
        ] {
            let found = find("m", &directory, name, "model.onnx").ok();
            assert_eq!(found, expected.map(|name| directory.join(name)), "{name:?}");
        }
        let absent = find("m", &directory, Some("absent.onnx"), "model.onnx").unwrap_err();
        assert_eq!(
            absent.message(),
            format!(
                "unable to find '{}' for model instance 'm'",
                directory.join("absent.onnx").display()
            )
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
