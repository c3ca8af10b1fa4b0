//! Where an engine's library is.

use std::env;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::{BackendContext, Error, ModelConfig};

/// How an engine's library is found. The first of these that is there:
///
/// 1. a parameter of the model, one of [`settings`](Self::settings);
/// 2. the backend setting of the same name (`--backend-config=<backend>,<setting>=<path>`);
/// 3. the environment variable [`variable`](Self::variable);
/// 4. a file whose name begins with [`stem`](Self::stem) beside the backend's own library;
/// 5. such a file in the [`package`](Self::package) of the Python environment that the backend is
///    installed in.
///
/// A setting may name a folder that holds the library. What is named is used, or is an error:
/// nothing else stands in for a library that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryPlace {
    /// The backend's name, which is also what `scripts/fetch-runtime` calls the engine.
    pub backend: &'static str,
    /// What the engine is called, in messages: `ONNX Runtime`.
    pub product: &'static str,
    /// Environment variable, `CONCH_<BACKEND>_LIBRARY`.
    pub variable: &'static str,
    /// Names of the parameter and backend setting; the first is the one to tell people.
    pub settings: &'static [&'static str],
    /// The library's name without a version: `libonnxruntime.so` stands for `libonnxruntime.so.1`
    /// too.
    pub stem: &'static str,
    /// The folder of the library in the engine's Python package, if that has one that fits.
    pub package: Option<&'static str>,
}

impl LibraryPlace {
    /// The library for models that name none themselves. To be asked once, when the backend starts.
    pub fn for_backend(&self, context: &BackendContext) -> Option<PathBuf> {
        let config = context.config();
        let setting = self.settings.iter().find_map(|name| config.setting(name));
        self.choose(
            setting,
            env::var_os(self.variable).map(PathBuf::from),
            context.directory(),
        )
    }

    /// The library for a model, where `of_backend` is the one for all.
    ///
    /// # Errors
    /// `Unavailable` if there is none: says in one line how to get and to name one.
    pub fn for_model(
        &self,
        config: &ModelConfig,
        of_backend: Option<&Path>,
    ) -> Result<PathBuf, Error> {
        self.named_by_model(config)
            .or_else(|| of_backend.map(Path::to_owned))
            .ok_or_else(|| self.missing())
    }

    /// The library that a model names itself.
    pub fn named_by_model(&self, config: &ModelConfig) -> Option<PathBuf> {
        let mut named = self
            .settings
            .iter()
            .filter_map(|name| config.parameter(name));
        named
            .find(|path| !path.is_empty())
            .map(|path| self.in_folder(PathBuf::from(path)))
    }

    /// Why the library at `path` is of no use.
    pub fn unusable(&self, path: &Path, why: impl Display) -> Error {
        let (product, path) = (self.product, path.display());
        Error::unavailable(format!("{product} library {path}: {why}"))
    }

    /// That there is no library, and what to do about it.
    pub fn missing(&self) -> Error {
        let LibraryPlace {
            backend,
            product,
            variable,
            ..
        } = self;
        let setting = self.settings.first().unwrap_or(&"library");
        Error::unavailable(format!(
            "no {product} library was found: run scripts/fetch-runtime {backend}, and name the \
             library that it prints in --backend-config={backend},{setting}=<path> or {variable}"
        ))
    }

    fn choose(
        &self,
        setting: Option<&str>,
        variable: Option<PathBuf>,
        directory: &Path,
    ) -> Option<PathBuf> {
        setting
            .map(PathBuf::from)
            .or(variable)
            .filter(|path| !path.as_os_str().is_empty())
            .map(|path| self.in_folder(path))
            .or_else(|| self.in_directory(directory))
            .or_else(|| self.in_environment(directory))
    }

    /// Of the environment whose `lib/conch/backends/<name>` the backend's `directory` is.
    fn in_environment(&self, directory: &Path) -> Option<PathBuf> {
        let (package, folder) = (self.package?, directory.parent()?.parent()?);
        if folder.file_name()? != "conch" {
            return None;
        }
        let mut pythons: Vec<_> = std::fs::read_dir(folder.parent()?)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| is_python(path))
            .collect();
        pythons.sort();
        let found =
            |python: &PathBuf| self.in_directory(&python.join("site-packages").join(package));
        pythons.iter().find_map(found)
    }

    /// A folder that was named stands for the library in it.
    fn in_folder(&self, path: PathBuf) -> PathBuf {
        match path.is_dir() {
            true => self.in_directory(&path).unwrap_or(path),
            false => path,
        }
    }

    fn in_directory(&self, directory: &Path) -> Option<PathBuf> {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .ok()?
            .flatten()
            .map(|entry| entry.file_name())
            .filter(|name| self.is_library_name(&name.to_string_lossy()))
            .collect();
        // The bare name is what an administrator links to the version to be used; it sorts first.
        names.sort();
        names.first().map(|name| directory.join(name))
    }

    fn is_library_name(&self, name: &str) -> bool {
        name.strip_prefix(self.stem)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Whether a folder is that of a Python 3, as `python3.11`.
fn is_python(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b"python3")
}

/// The file `name` beside a library, or beside the file that its path is a link to.
pub fn beside(library: &Path, name: &str) -> Option<PathBuf> {
    let found = |library: &Path| Some(library.with_file_name(name)).filter(|path| path.exists());
    found(library).or_else(|| found(&library.canonicalize().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: LibraryPlace = LibraryPlace {
        backend: "onnxruntime",
        product: "ONNX Runtime",
        variable: "CONCH_ONNXRUNTIME_LIBRARY",
        settings: &["onnxruntime-library", "library"],
        stem: "libonnxruntime.so",
        package: Some("onnxruntime/capi"),
    };

    #[test]
    fn knows_library_names() {
        for (name, expected) in [
            ("libonnxruntime.so", true),
            ("libonnxruntime.so.1.31.1", true),
            ("libonnxruntime.so.1", true),
            ("libonnxruntime.sox", false),
            ("libonnxruntime_providers_cuda.so", false),
            ("libtriton_onnxruntime.so", false),
        ] {
            assert_eq!(PLACE.is_library_name(name), expected, "{name}");
        }
    }

    #[test]
    fn finds_the_library_beside_the_backend() {
        let directory = env::temp_dir().join(format!("conch-engine-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let found = || PLACE.choose(None, None, &directory);
        assert_eq!(found(), None);
        for name in ["libonnxruntime.so.1.31.1", "libtriton_onnxruntime.so"] {
            std::fs::write(directory.join(name), b"").unwrap();
        }
        let versioned = directory.join("libonnxruntime.so.1.31.1");
        assert_eq!(found(), Some(versioned.clone()));
        // A folder that a setting names.
        let folder = directory.to_str().unwrap();
        let elsewhere = Path::new("/nonexistent");
        assert_eq!(
            PLACE.choose(Some(folder), None, elsewhere),
            Some(versioned.clone())
        );
        let bare = directory.join("libonnxruntime.so");
        std::fs::write(&bare, b"").unwrap();
        assert_eq!(found(), Some(bare));
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found(), None);
    }

    #[test]
    fn finds_the_library_in_the_python_environment() {
        let root = env::temp_dir().join(format!("conch-environment-{}", std::process::id()));
        let backend = root.join("lib/conch/backends/onnxruntime");
        let package = root.join("lib/python3.11/site-packages/onnxruntime/capi");
        for folder in [&backend, &package, &root.join("lib/python3.9")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let found = |place: LibraryPlace| place.choose(None, None, &backend);
        assert_eq!(found(PLACE), None);
        let library = package.join("libonnxruntime.so.1.31.1");
        std::fs::write(&library, b"").unwrap();
        assert_eq!(found(PLACE), Some(library.clone()));
        let unpackaged = LibraryPlace {
            package: None,
            ..PLACE
        };
        assert_eq!(found(unpackaged), None);
        // Of another installation, what lies near is not the backend's.
        let other = root.join("lib/triton/backends/onnxruntime");
        assert_eq!(PLACE.choose(None, None, &other), None);
        let own = backend.join("libonnxruntime.so");
        std::fs::write(&own, b"").unwrap();
        assert_eq!(found(PLACE), Some(own));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn finds_what_lies_beside_a_library_and_its_link() {
        let directory = env::temp_dir().join(format!("conch-beside-{}", std::process::id()));
        let folder = directory.join("folder");
        std::fs::create_dir_all(&folder).unwrap();
        let (library, link) = (folder.join("lib.so"), directory.join("link.so"));
        let provider = folder.join("provider.so");
        std::fs::write(&library, b"").unwrap();
        std::os::unix::fs::symlink(&library, &link).unwrap();
        let found = |library: &Path| beside(library, "provider.so");
        assert_eq!((found(&library), found(&link)), (None, None));
        std::fs::write(&provider, b"").unwrap();
        let real = provider.canonicalize().unwrap();
        assert_eq!(
            (found(&library), found(&link)),
            (Some(provider), Some(real))
        );
        let nearer = directory.join("provider.so");
        std::fs::write(&nearer, b"").unwrap();
        assert_eq!(found(&link), Some(nearer));
        assert_eq!(found(&directory.join("missing/lib.so")), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_nearest_setting_counts() {
        let elsewhere = Path::new("/nonexistent");
        for (setting, variable, expected) in [
            (Some("/a.so"), Some("/b.so"), Some("/a.so")),
            (None, Some("/b.so"), Some("/b.so")),
            // Set to nothing, it says that the other ways are not meant.
            (Some(""), Some("/b.so"), None),
            (None, Some(""), None),
            (None, None, None),
        ] {
            let found = PLACE.choose(setting, variable.map(PathBuf::from), elsewhere);
            assert_eq!(
                found,
                expected.map(PathBuf::from),
                "{setting:?} {variable:?}"
            );
        }
        let of_backend = Some(Path::new("/backend.so"));
        for (parameters, expected) in [
            (r#""library": {"string_value": "/m.so"}"#, "/m.so"),
            (r#""library": {"string_value": ""}"#, "/backend.so"),
            ("", "/backend.so"),
        ] {
            let json = format!(r#"{{"parameters": {{{parameters}}}}}"#);
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            let found = PLACE.for_model(&config, of_backend).unwrap();
            assert_eq!(found, Path::new(expected), "{parameters}");
        }
    }

    #[test]
    fn says_what_to_do_without_a_library() {
        let config = ModelConfig::parse(b"{}").unwrap();
        assert_eq!(
            PLACE.for_model(&config, None).unwrap_err().message(),
            "no ONNX Runtime library was found: run scripts/fetch-runtime onnxruntime, and name \
             the library that it prints in \
             --backend-config=onnxruntime,onnxruntime-library=<path> or \
             CONCH_ONNXRUNTIME_LIBRARY"
        );
    }
}
