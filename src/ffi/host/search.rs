//! Where a backend's library lies.

use std::path::{Path, PathBuf};

use conch_engine::{BackendSpec, Error};

/// The library of the backend that `spec` names: in the model's version directory, in the model's directory, or in the backend's own
/// directory, in this order. The path is resolved, so that two ways to one file give one path. Reads directories: blocks.
///
/// # Errors
/// INVALID_ARG if there is none, or if `runtime` leads out of the directory in which it was found; UNSUPPORTED for Python runtimes.
pub(crate) fn find_library(backend_directory: &Path, spec: &BackendSpec) -> Result<PathBuf, Error> {
    let directories = [
        spec.model_path.join(spec.version.to_string()),
        spec.model_path.clone(),
        backend_directory.join(&spec.backend),
    ];
    let file_name = match spec.runtime.as_str() {
        "" => format!("libtriton_{}.so", spec.backend),
        PYTHON_RUNTIME => {
            return Err(Error::unsupported(format!(
                "model '{}' has runtime '{PYTHON_RUNTIME}': backends written in Python are not supported",
                spec.model_name
            )));
        }
        runtime => runtime.to_owned(),
    };
    let found = directories
        .iter()
        .find(|directory| directory.join(&file_name).exists());
    let Some(directory) = found else {
        return Err(Error::invalid(if spec.runtime.is_empty() {
            format!(
                "unable to find backend library for backend '{}', try specifying runtime on the model configuration.",
                spec.backend
            )
        } else {
            let searched: String = directories
                .iter()
                .map(|path| format!("'{}' ", path.display()))
                .collect();
            format!(
                "unable to find backend library '{file_name}' for model '{}', searched: {searched}",
                spec.model_name
            )
        }));
    };
    let path = resolve(&directory.join(&file_name))?;
    if !spec.runtime.is_empty() && !path.starts_with(resolve(directory)?) {
        return Err(Error::invalid(format!(
            "backend library name '{file_name}' escapes backend directory '{}', for model '{}', check model config runtime field",
            directory.display(),
            spec.model_name
        )));
    }
    Ok(path)
}

fn resolve(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize()
        .map_err(|error| Error::invalid(format!("failed to resolve '{}': {error}", path.display())))
}

const PYTHON_RUNTIME: &str = "model.py";

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn searches_version_then_model_then_backend_directory() {
        let root = std::env::temp_dir().join(format!("conch-search-{}", std::process::id()));
        let backends = root.join("backends");
        let model = root.join("models/m");
        let spec = |runtime: &str| BackendSpec {
            model_name: "m".to_owned(),
            backend: "b".to_owned(),
            runtime: runtime.to_owned(),
            model_path: model.clone(),
            version: 3,
        };
        let find = |runtime: &str| {
            find_library(&backends, &spec(runtime)).map_err(|error| error.message.into_owned())
        };
        let resolved = |path: &str| Ok(root.canonicalize().unwrap().join(path));

        assert_eq!(
            find(""),
            Err("unable to find backend library for backend 'b', try specifying runtime on the model configuration.".to_owned())
        );
        for path in [
            "backends/b/libtriton_b.so",
            "models/m/libtriton_b.so",
            "models/m/3/libtriton_b.so",
        ] {
            touch(&root.join(path));
            assert_eq!(find(""), resolved(path), "the nearer one wins");
        }
        touch(&root.join("backends/b/other.so"));
        assert_eq!(find("other.so"), resolved("backends/b/other.so"));
        assert!(
            find("absent.so").unwrap_err().starts_with(
                "unable to find backend library 'absent.so' for model 'm', searched: '"
            )
        );
        touch(&root.join("models/outside.so"));
        assert!(
            find("../outside.so")
                .unwrap_err()
                .contains("escapes backend directory")
        );
        std::os::unix::fs::symlink(root.join("models/outside.so"), model.join("linked.so"))
            .unwrap();
        assert!(
            find("linked.so")
                .unwrap_err()
                .contains("escapes backend directory")
        );
        assert!(find("model.py").unwrap_err().contains("not supported"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
