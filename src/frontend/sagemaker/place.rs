//! Resolves the URL of a SageMaker load request to a directory below that of SageMaker's models.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use conch_engine::Error;

/// Entries of a model's directory that are looked at, and bytes of one configuration: an archive
/// comes from outside.
const ENTRIES_MAX: usize = 1024;
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// A repository, and the directory in it that is the model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModelLocation {
    pub(super) repository: String,
    pub(super) directory: String,
}

/// Finds the model behind `url`. Reads directories.
///
/// # Errors
/// INVALID_ARG if `url` is not of the form `<root>/<hash>/model[/<subdirectory>]`, however it is
/// written, or leads elsewhere.
pub(super) fn find(root: &Path, url: &str) -> Result<ModelLocation, Error> {
    let path = within(root, url).ok_or_else(|| refusal(root, url))?;
    // What the path says and where it leads are two things: an archive may hold links.
    if let (Ok(real_root), Ok(real_path)) = (root.canonicalize(), path.canonicalize())
        && !real_path.starts_with(real_root)
    {
        return Err(refusal(root, url));
    }
    if path.join("config.pbtxt").is_file() {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refusal(root, url));
        };
        return Ok(ModelLocation {
            repository: parent.to_string_lossy().into_owned(),
            directory: name.to_string_lossy().into_owned(),
        });
    }
    let directory = choose(&path)
        .ok_or_else(|| Error::invalid(format!("no model is found in '{}'", path.display())))?;
    Ok(ModelLocation {
        repository: path.to_string_lossy().into_owned(),
        directory,
    })
}

fn refusal(root: &Path, url: &str) -> Error {
    Error::invalid(format!(
        "Invalid \"url\" '{url}': expected a path of the form {}/<hash>/model[/<subdir>]",
        root.display()
    ))
}

/// The path that `url` is once its dots are resolved, if it is one of the form that is allowed.
fn within(root: &Path, url: &str) -> Option<PathBuf> {
    let url = Path::new(url);
    if !url.is_absolute() {
        return None;
    }
    let mut path = PathBuf::new();
    for component in url.components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    let below = path.strip_prefix(root).ok()?;
    let names: Option<Vec<&str>> = below
        .components()
        .map(|component| component.as_os_str().to_str())
        .collect();
    match names?.as_slice() {
        [hash, "model"] if is_plain(hash) => Some(path.clone()),
        [hash, "model", below] if is_plain(hash) && is_plain(below) => Some(path.clone()),
        _ => None,
    }
}

/// Of the characters that SageMaker's names are of.
fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'))
}

/// The directory of an ensemble, if there is one below `path`; else the first in the order of
/// names.
fn choose(path: &Path) -> Option<String> {
    let mut names: Vec<String> = std::fs::read_dir(path)
        .ok()?
        .take(ENTRIES_MAX)
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    let ensemble = names
        .iter()
        .position(|name| is_ensemble(&path.join(name).join("config.pbtxt")));
    (!names.is_empty()).then(|| names.swap_remove(ensemble.unwrap_or(0)))
}

/// Whether a configuration says `platform: "ensemble"`.
fn is_ensemble(config: &Path) -> bool {
    let Ok(file) = conch_config::files::open(config) else {
        return false;
    };
    let mut text = String::new();
    if file
        .take(CONFIG_BYTES_MAX)
        .read_to_string(&mut text)
        .is_err()
    {
        return false;
    }
    text.split("platform:")
        .skip(1)
        .any(|rest| rest.trim_start().starts_with("\"ensemble\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_one_form() {
        let root = Path::new("/opt/ml/models");
        for (url, expected) in [
            ("/opt/ml/models/h1/model", Some("/opt/ml/models/h1/model")),
            ("/opt/ml/models/h1/model/", Some("/opt/ml/models/h1/model")),
            (
                "/opt//ml/./models/h1/model/sub",
                Some("/opt/ml/models/h1/model/sub"),
            ),
            (
                "/opt/ml/models/x/../h1/model",
                Some("/opt/ml/models/h1/model"),
            ),
            // A name of dots is a name, unless it is one of the two that are not.
            ("/opt/ml/models/.../model", Some("/opt/ml/models/.../model")),
            ("/opt/ml/models/h1/model/../", None),
            ("/opt/ml/models/h1/model/../../h2", None),
            ("/opt/ml/models/h1/model/a/b", None),
            ("/opt/ml/models/h1/model/../../../../../etc", None),
            ("/opt/ml/models/h1/models", None),
            ("/opt/ml/models/h1", None),
            ("/opt/ml/models/h 1/model", None),
            ("/opt/ml/models/h\0/model", None),
            ("/opt/ml/models/h\u{2025}/model", None),
            ("/opt/ml/modelsx/h1/model", None),
            ("opt/ml/models/h1/model", None),
            ("../opt/ml/models/h1/model", None),
            ("/proc/self/root/opt/ml/models/h1/model", None),
            ("file:///opt/ml/models/h1/model", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(within(root, url), expected.map(PathBuf::from), "{url:?}");
        }
    }

    #[test]
    fn the_model_of_an_archive() {
        let root = std::env::temp_dir().join(format!("conch-place-{}", std::process::id()));
        let model = |path: &str, config: &str| {
            std::fs::create_dir_all(root.join(path)).unwrap();
            std::fs::write(root.join(path).join("config.pbtxt"), config).unwrap();
        };
        model("one/model", "");
        model("two/model/b", "backend: \"x\"");
        model("two/model/a", "");
        model("three/model/a", "");
        model("three/model/b", "name: \"b\"\nplatform:  \"ensemble\"");
        model("four/model/sub", "");
        std::fs::create_dir_all(root.join("five/model")).unwrap();
        std::fs::create_dir_all(root.join("six")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("six/model")).unwrap();
        let text = |path: &str| root.join(path).to_string_lossy().into_owned();
        for (url, repository, directory) in [
            ("one/model", "one", "model"),
            ("two/model", "two/model", "a"),
            ("three/model", "three/model", "b"),
            ("four/model/sub", "four/model", "sub"),
        ] {
            let expected = ModelLocation {
                repository: text(repository),
                directory: directory.to_owned(),
            };
            assert_eq!(find(&root, &text(url)), Ok(expected), "{url}");
        }
        for (url, message) in [
            ("five/model", "no model is found in '"),
            ("none/model", "no model is found in '"),
            ("six/model", "Invalid \"url\""),
        ] {
            let error = find(&root, &text(url)).unwrap_err();
            assert!(error.message.contains(message), "{url}: {}", error.message);
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
