//! Which interpreter serves a model, and the variables that it is started with.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use conch_backend_sdk as sdk;
use sdk::Error;

use crate::settings::{ModelSettings, Settings};
use crate::unpacked::{self, UnpackedFolder};

/// An interpreter in its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interpreter {
    /// A path, or a name that is looked up in `PATH`.
    pub(crate) program: PathBuf,
    /// In addition to the server's.
    pub(crate) variables: Vec<(String, OsString)>,
}

/// Archives of environments that were unpacked, each once; removed with the backend.
///
/// Those that a server leaves when it is killed are removed by the next one.
#[derive(Debug, Default)]
pub(crate) struct Environments {
    unpacked: Mutex<Vec<Unpacked>>,
}

#[derive(Debug)]
struct Unpacked {
    archive: PathBuf,
    modified: Option<std::time::SystemTime>,
    folder: UnpackedFolder,
}

/// Stands for the model's folder in `EXECUTION_ENV_PATH`.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

impl Environments {
    /// None is unpacked yet; what killed servers left is removed.
    pub(crate) fn new() -> Environments {
        for (path, removed) in unpacked::sweep(&std::env::temp_dir()) {
            let path = path.display();
            match removed {
                Ok(()) => sdk::info!("removed '{path}', which a server left that was killed"),
                Err(error) => sdk::warning!("cannot remove '{path}': {error}"),
            }
        }
        Environments::default()
    }

    /// The interpreter of a model whose folder is `directory`.
    ///
    /// # Errors
    /// `Internal` if its environment is not there or cannot be unpacked.
    pub(crate) fn interpreter(
        &self,
        settings: &Settings,
        model: &ModelSettings,
        directory: &Path,
    ) -> Result<Interpreter, Error> {
        let chosen = model.interpreter.as_ref().unwrap_or(&settings.interpreter);
        let Some(path) = &model.environment else {
            return Ok(Interpreter {
                program: chosen.clone(),
                variables: Vec::new(),
            });
        };
        let path = PathBuf::from(path.replace(MODEL_DIRECTORY, &directory.to_string_lossy()));
        let root = match path.is_dir() {
            true => path,
            false => self.unpack(&path)?,
        };
        let programs = root.join("bin");
        let program = match &model.interpreter {
            Some(program) => program.clone(),
            None => ["python3", "python"]
                .map(|name| programs.join(name))
                .into_iter()
                .find(|program| program.exists())
                .ok_or_else(|| {
                    Error::internal(format!(
                        "the Python environment '{}' has no interpreter in '{}'",
                        root.display(),
                        programs.display()
                    ))
                })?,
        };
        let mut search = programs.into_os_string();
        if let Some(path) = std::env::var_os("PATH") {
            search.push(":");
            search.push(path);
        }
        let root = root.into_os_string();
        Ok(Interpreter {
            program,
            variables: vec![
                ("PATH".to_owned(), search),
                ("VIRTUAL_ENV".to_owned(), root.clone()),
                ("CONDA_PREFIX".to_owned(), root),
            ],
        })
    }

    /// The folder with the contents of an archive.
    fn unpack(&self, archive: &Path) -> Result<PathBuf, Error> {
        let failed = |error: std::io::Error| {
            Error::internal(format!(
                "Failed to unpack the Python environment '{}': {error}",
                archive.display()
            ))
        };
        let file = File::open(archive).map_err(failed)?;
        let modified = file.metadata().and_then(|about| about.modified()).ok();
        // One at a time: the second model that wants it waits.
        let mut unpacked = self
            .unpacked
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = unpacked
            .iter()
            .find(|known| known.archive == archive && known.modified == modified);
        if let Some(known) = known {
            return Ok(known.folder.contents());
        }
        let folder = UnpackedFolder::create(&std::env::temp_dir()).map_err(failed)?;
        let plain = flate2::read::GzDecoder::new(file);
        tar::Archive::new(plain)
            .unpack(folder.contents())
            .map_err(failed)?;
        let directory = folder.contents();
        unpacked.push(Unpacked {
            archive: archive.to_owned(),
            modified,
            folder,
        });
        Ok(directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_found() {
        let root = std::env::temp_dir().join(format!("conch-environment-{}", std::process::id()));
        let programs = root.join("env").join("bin");
        std::fs::create_dir_all(&programs).unwrap();
        let environments = Environments::default();
        let settings = Settings::default();
        let find = |environment: Option<&str>, interpreter: Option<&str>| {
            let model = ModelSettings {
                environment: environment.map(str::to_owned),
                interpreter: interpreter.map(PathBuf::from),
                ..ModelSettings::default()
            };
            environments.interpreter(&settings, &model, &root)
        };
        assert_eq!(find(None, None).unwrap().program, Path::new("python3"));
        let own = find(None, Some("/opt/python")).unwrap();
        assert_eq!(own.program, Path::new("/opt/python"));
        let named = format!("{MODEL_DIRECTORY}/env");
        let missing = find(Some(&named), None).unwrap_err().to_string();
        assert!(missing.contains("has no interpreter"), "{missing}");
        std::fs::write(programs.join("python"), "").unwrap();
        let found = find(Some(&named), None).unwrap();
        assert_eq!(found.program, programs.join("python"));
        let path = &found.variables[0];
        assert!(
            path.1
                .to_string_lossy()
                .starts_with(&*programs.to_string_lossy())
        );
        let absent = find(Some("/nowhere.tar.gz"), None).unwrap_err().to_string();
        assert!(absent.contains("/nowhere.tar.gz"), "{absent}");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn archives_are_unpacked_once_and_go_with_the_backend() {
        let archive = std::env::temp_dir().join(format!("conch-env-{}.tar.gz", std::process::id()));
        let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(
            File::create(&archive).unwrap(),
            flate2::Compression::fast(),
        ));
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o755);
        builder
            .append_data(&mut header, "bin/python3", &b"#!"[..])
            .unwrap();
        builder.into_inner().unwrap().finish().unwrap();
        let environments = Environments::default();
        let model = ModelSettings {
            environment: Some(archive.to_string_lossy().into_owned()),
            ..ModelSettings::default()
        };
        let find = || environments.interpreter(&Settings::default(), &model, Path::new("/"));
        let first = find().unwrap();
        assert_eq!(find().unwrap(), first);
        assert!(first.program.exists());
        drop(environments);
        assert!(!first.program.exists());
        std::fs::remove_file(&archive).unwrap();
    }
}
