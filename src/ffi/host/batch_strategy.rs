//! Where a model's custom batching library lies. Nothing calls such a library yet: the engine says so when it would have to.

use std::path::{Path, PathBuf};

use conch_engine::{BackendSpec, Error};

/// The custom batching library of a model: the one that the parameter TRITON_BATCH_STRATEGY_PATH names, which must lie in the model's
/// directory; else `batchstrategy.so` in the version's, the model's or the backend's directory, in this order. Reads directories:
/// blocks.
///
/// # Errors
/// INVALID_ARG if the named one lies elsewhere, NOT_FOUND if it is not there.
pub(crate) fn find(
    backend_directory: &Path,
    spec: &BackendSpec,
    named: Option<&str>,
) -> Result<Option<PathBuf>, Error> {
    let Some(named) = named else {
        let directories = [
            spec.model_path.join(spec.version.to_string()),
            spec.model_path.clone(),
            backend_directory.join(&spec.backend),
        ];
        let candidates = directories
            .iter()
            .map(|directory| directory.join(FILE_NAME));
        return Ok(candidates.into_iter().find(|path| path.exists()));
    };
    let path = Path::new(named);
    let parent = spec.model_path.canonicalize().map_err(|error| {
        Error::invalid(format!(
            "Failed to canonicalize parent path '{}': {error}",
            spec.model_path.display()
        ))
    })?;
    if !resolve(path).starts_with(parent) {
        return Err(Error::invalid(
            "Batching library path escapes model repository.",
        ));
    }
    if !path.exists() {
        return Err(Error::not_found(format!(
            "Batching library path not found: {named}"
        )));
    }
    Ok(Some(path.to_owned()))
}

/// `path` without links as far as it exists; the rest as it is, if nothing in it leads upwards (then the path itself, which lies in no
/// resolved directory).
fn resolve(path: &Path) -> PathBuf {
    let rest = path.ancestors().find_map(|ancestor| {
        Some((
            ancestor.canonicalize().ok()?,
            path.strip_prefix(ancestor).ok()?,
        ))
    });
    match rest {
        Some((resolved, rest)) if rest.components().all(is_name) => resolved.join(rest),
        _ => PathBuf::new(),
    }
}

fn is_name(component: std::path::Component<'_>) -> bool {
    matches!(component, std::path::Component::Normal(_))
}

const FILE_NAME: &str = "batchstrategy.so";

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn named_ones_must_lie_in_the_model() {
        let root = std::env::temp_dir().join(format!("conch-strategy-{}", std::process::id()));
        let spec = BackendSpec {
            model_name: "m".to_owned(),
            backend: "b".to_owned(),
            runtime: String::new(),
            model_path: root.join("models/m"),
            version: 1,
        };
        let model = spec.model_path.display().to_string();
        std::fs::create_dir_all(&spec.model_path).unwrap();
        let backends = root.join("backends");
        let find = |named: Option<&str>| {
            find(&backends, &spec, named).map_err(|error| error.message.into_owned())
        };
        assert_eq!(find(None), Ok(None));
        for place in ["backends/b", "models/m", "models/m/1"] {
            let path = root.join(place).join(FILE_NAME);
            touch(&path);
            assert_eq!(find(None), Ok(Some(path)), "each goes before those before");
        }
        touch(&root.join("models/m/own.so"));
        let own = format!("{model}/own.so");
        assert_eq!(find(Some(&own)), Ok(Some(PathBuf::from(&own))));
        touch(&root.join("models/other/own.so"));
        std::os::unix::fs::symlink(root.join("models/other"), root.join("models/m/link")).unwrap();
        for outside in [
            format!("{model}/../other/own.so"),
            format!("{model}/link/own.so"),
            format!("{model}/none/../../other/own.so"),
            "/nonexistent/own.so".to_owned(),
        ] {
            assert_eq!(
                find(Some(&outside)).unwrap_err(),
                "Batching library path escapes model repository.",
                "{outside}"
            );
        }
        let missing = format!("{model}/missing/own.so");
        assert_eq!(
            find(Some(&missing)).unwrap_err(),
            format!("Batching library path not found: {missing}")
        );
        std::fs::remove_dir_all(&root).unwrap();
    }
}
