//! Searches the library of a backend.

use std::path::{Path, PathBuf};

use conch_engine::{BackendSpec, Error, truncated};
use conch_log as log;

/// Where a backend lies. Paths are as the operator gave them, relative or through symbolic links:
/// backends put them together with the backend directory, which they are told as it was given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BackendLocation {
    /// The shared library to open.
    pub(crate) library: PathBuf,
    /// A backend that is a `model.py`, which the Python backend's library runs: that file.
    pub(crate) script: Option<PathBuf>,
    /// What one open backend is known by, resolved, so that two ways to one file give one backend.
    /// Those written in Python share a library, and are known by their files.
    pub(crate) key: PathBuf,
}

impl BackendLocation {
    /// The file that makes this backend another one than the others.
    pub(crate) fn file(&self) -> &Path {
        self.script.as_deref().unwrap_or(&self.library)
    }

    /// The directory that BackendArtifacts reports.
    pub(crate) fn directory(&self) -> &Path {
        self.file().parent().unwrap_or(Path::new("/"))
    }
}

/// A longer path names no file (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;

/// The library of the backend that `spec` names: in the model's version directory, in the model's
/// directory, or in the backend's own directory, in this order. Where none has it, the backend's
/// own directory may hold a `model.py` instead. Reads directories: blocks.
///
/// # Errors
/// INVALID_ARG if there is none, or if `runtime` leads out of the directory in which it was found.
pub(crate) fn find_library(
    backend_directory: &Path,
    spec: &BackendSpec,
) -> Result<BackendLocation, Error> {
    if spec.backend.len().max(spec.runtime.len()) > PATH_BYTES_MAX {
        return Err(Error::invalid(without_library(spec)));
    }
    let own = backend_directory.join(&spec.backend);
    let script = own.join(PYTHON_RUNTIME);
    let mut directories = vec![
        spec.model_path.join(spec.version.to_string()),
        spec.model_path.clone(),
        own,
    ];
    let library_name = format!("libtriton_{}.so", spec.backend);
    let is_script = match spec.runtime.as_str() {
        "" => first_with(&directories, &library_name).is_none() && script.exists(),
        runtime => runtime == PYTHON_RUNTIME,
    };
    let file_name = match spec.runtime.as_str() {
        _ if is_script => PYTHON_LIBRARY,
        "" => &library_name,
        runtime => runtime,
    };
    if is_script {
        directories.push(backend_directory.join(PYTHON_BACKEND));
    }
    let Some(directory) = first_with(&directories, file_name) else {
        return Err(Error::invalid(if spec.runtime.is_empty() && !is_script {
            // Where it was looked for is for the operator; clients see the error.
            log::error!("{}", not_found(backend_directory, spec, &library_name));
            without_library(spec)
        } else {
            let searched: String = directories
                .iter()
                .map(|path| format!("'{}' ", path.display()))
                .collect();
            format!(
                "unable to find backend library '{}' for model '{}', searched: {searched}",
                truncated(file_name),
                spec.model_name
            )
        }));
    };
    let library = directory.join(file_name);
    let resolved = resolve(&library)?;
    if !spec.runtime.is_empty() && !resolved.starts_with(resolve(directory)?) {
        return Err(Error::invalid(format!(
            "backend library name '{file_name}' escapes backend directory '{}', for model '{}', \
             check model config runtime field",
            directory.display(),
            spec.model_name
        )));
    }
    if is_script && !script.exists() {
        return Err(Error::invalid(format!(
            "unable to find Python backend based backend library '{PYTHON_RUNTIME}' for model \
             '{}', searched: '{}'",
            spec.model_name,
            script.display()
        )));
    }
    if !is_script {
        return Ok(BackendLocation {
            library,
            script: None,
            key: resolved,
        });
    }
    Ok(BackendLocation {
        library,
        key: resolve(&backend_directory.join(&spec.backend))?.join(PYTHON_RUNTIME),
        script: Some(script),
    })
}

fn without_library(spec: &BackendSpec) -> String {
    format!(
        "unable to find backend library for backend '{}', try specifying runtime on the model \
         configuration.",
        truncated(&spec.backend)
    )
}

/// The places without the library of a backend.
fn not_found(backend_directory: &Path, spec: &BackendSpec, library_name: &str) -> String {
    let missing = match backend_directory.is_dir() {
        true => "",
        false => ", which does not exist",
    };
    format!(
        "backend '{}' of model '{}' is not found: there is no '{}' in the model's directories, nor \
         in '{}' of the backend directory '{}'{missing}",
        truncated(&spec.backend),
        spec.model_name,
        truncated(library_name),
        truncated(&spec.backend),
        backend_directory.display()
    )
}

fn first_with<'a>(directories: &'a [PathBuf], file_name: &str) -> Option<&'a PathBuf> {
    directories
        .iter()
        .find(|directory| directory.join(file_name).exists())
}

fn resolve(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize()
        .map_err(|error| Error::invalid(format!("failed to resolve '{}': {error}", path.display())))
}

/// The `runtime` of a backend written in Python, and the name of its file.
pub(crate) const PYTHON_RUNTIME: &str = "model.py";
/// The backend that runs it, and its library.
pub(crate) const PYTHON_BACKEND: &str = "python";
const PYTHON_LIBRARY: &str = "libtriton_python.so";

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
        let find_all = |runtime: &str| {
            find_library(&backends, &spec(runtime)).map_err(|error| error.message.into_owned())
        };
        let find = |runtime: &str| {
            find_all(runtime).map(|found| {
                assert_eq!(found.script, None);
                found.library
            })
        };
        let given = |path: &str| Ok(root.join(path));

        assert_eq!(
            find(""),
            Err(
                "unable to find backend library for backend 'b', try specifying runtime on the \
                 model configuration."
                    .to_owned()
            )
        );
        assert_eq!(
            not_found(&backends, &spec(""), "libtriton_b.so"),
            format!(
                "backend 'b' of model 'm' is not found: there is no 'libtriton_b.so' in the \
                 model's directories, nor in 'b' of the backend directory '{}', which does not \
                 exist",
                backends.display()
            )
        );
        for path in [
            "backends/b/libtriton_b.so",
            "models/m/libtriton_b.so",
            "models/m/3/libtriton_b.so",
        ] {
            touch(&root.join(path));
            assert_eq!(find(""), given(path), "the nearer one wins");
        }
        touch(&root.join("backends/b/other.so"));
        assert_eq!(find("other.so"), given("backends/b/other.so"));
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
        // By way of a link: another path, the same backend.
        let link = root.join("link");
        std::os::unix::fs::symlink(&backends, &link).unwrap();
        std::fs::remove_dir_all(&model).unwrap();
        let found = find_library(&link, &spec("")).unwrap();
        assert_eq!(found.directory(), link.join("b"));
        assert_eq!(
            found.key,
            find_library(&backends, &spec("")).unwrap().key,
            "one backend"
        );
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_backend_may_be_a_python_file() {
        let root = std::env::temp_dir().join(format!("conch-search-python-{}", std::process::id()));
        let backends = root.join("backends");
        let spec = |runtime: &str| BackendSpec {
            model_name: "m".to_owned(),
            backend: "llm".to_owned(),
            runtime: runtime.to_owned(),
            model_path: root.join("models/m"),
            version: 1,
        };
        let find = |runtime: &str| {
            find_library(&backends, &spec(runtime)).map_err(|error| error.message.into_owned())
        };
        touch(&root.join("models/m/1/model.py"));
        assert!(
            find("")
                .unwrap_err()
                .ends_with("try specifying runtime on the model configuration."),
            "the model's own file is no backend"
        );
        assert!(find("model.py").unwrap_err().starts_with(
            "unable to find backend library 'libtriton_python.so' for model 'm', searched: '"
        ));
        touch(&root.join("backends/python/libtriton_python.so"));
        assert!(find("model.py").unwrap_err().starts_with(
            "unable to find Python backend based backend library 'model.py' for model 'm', \
             searched: '"
        ));
        touch(&root.join("backends/llm/model.py"));
        let expected = BackendLocation {
            library: root.join("backends/python/libtriton_python.so"),
            script: Some(root.join("backends/llm/model.py")),
            key: root.canonicalize().unwrap().join("backends/llm/model.py"),
        };
        assert_eq!(expected.directory(), root.join("backends/llm"));
        for runtime in ["", "model.py"] {
            assert_eq!(find(runtime).as_ref(), Ok(&expected), "{runtime}");
        }
        touch(&root.join("backends/llm/libtriton_llm.so"));
        assert_eq!(
            find("").unwrap().script,
            None,
            "a library goes before a file"
        );
        assert_eq!(find("model.py"), Ok(expected));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
