//! From a word of the command line to a model: its name, and what it consists of.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::kind::{self, FileKind, SAVED_MODEL};

/// A model that lies in no repository.
#[derive(Debug)]
pub struct StandaloneModel {
    /// By which clients ask for it.
    pub name: String,
    /// Absolute.
    pub path: PathBuf,
    pub(super) form: ModelForm,
}

#[derive(Debug)]
pub(super) enum ModelForm {
    /// A directory as repositories have them.
    Directory,
    /// A file, or a folder in the place of one.
    File(StandaloneFile),
}

#[derive(Debug)]
pub(super) struct StandaloneFile {
    pub name: String,
    pub kind: &'static FileKind,
}

impl StandaloneModel {
    /// What `word` names: a path, or `<name>=<path>`. Reads.
    ///
    /// # Errors
    /// Why that is no model.
    pub(super) fn find(word: &str) -> Result<StandaloneModel, String> {
        let path = Path::new(word);
        if fs::symlink_metadata(path).is_ok() {
            return StandaloneModel::at(path, None);
        }
        match word.split_once('=') {
            Some((name, path)) if fs::symlink_metadata(path).is_ok() => {
                if !is_name(name) {
                    return Err(format!(
                        "'{name}' cannot be the name of a model, which consists of letters, \
                         digits, '_', '-' and '.', and does not begin with '.'"
                    ));
                }
                StandaloneModel::at(Path::new(path), Some(name))
            }
            _ if word.contains("://") => Err(format!(
                "Unexpected argument: {word}\nWhat lies in an object store is given as a \
                 repository: --model-repository"
            )),
            _ => Err(format!(
                "Unexpected argument: {word}\nIt is neither an option nor a command, and no such \
                 file or directory is there."
            )),
        }
    }

    fn at(path: &Path, name: Option<&str>) -> Result<StandaloneModel, String> {
        let shown = path.display();
        let metadata = fs::metadata(path).map_err(|cause| format!("'{shown}': {cause}"))?;
        let path = absolute(path).map_err(|cause| format!("'{shown}': {cause}"))?;
        if metadata.is_dir() {
            return StandaloneModel::of_directory(path, name);
        }
        if !metadata.is_file() {
            return Err(format!("'{shown}' is no regular file"));
        }
        File::open(&path).map_err(|cause| format!("'{shown}': {cause}"))?;
        let file_name = file_name(&path)?;
        // A SavedModel is its folder.
        if let (SAVED_MODEL_FILE, Some(folder)) = (file_name.as_str(), path.parent()) {
            return StandaloneModel::of_saved_model(folder.to_owned(), name);
        }
        let Some(kind) = kind::of_file(&file_name) else {
            return Err(format!(
                "'{shown}' is of no kind that is served: the name of a model's file ends with one \
                 of {}",
                kind::suffixes()
            ));
        };
        StandaloneModel::of_file(path, file_name, kind, name)
    }

    fn of_directory(path: PathBuf, name: Option<&str>) -> Result<StandaloneModel, String> {
        let shown = path.display();
        if path.join(SAVED_MODEL_FILE).is_file() {
            return StandaloneModel::of_saved_model(path, name);
        }
        if path.join("config.pbtxt").is_file() || has_version(&path) {
            return Ok(StandaloneModel {
                name: match name {
                    Some(name) => String::from(name),
                    None => with_usual_letters(&file_name(&path)?),
                },
                path,
                form: ModelForm::Directory,
            });
        }
        let mut files = kind::KINDS.iter().filter_map(|kind| {
            let file_name = format!("model.{}", kind.suffix);
            let path = path.join(&file_name);
            path.exists().then_some((path, file_name, kind))
        });
        match (files.next(), files.next()) {
            (Some((path, file_name, kind)), None) => {
                StandaloneModel::of_file(path, file_name, kind, name)
            }
            (Some((_, first, _)), Some((_, second, _))) => Err(format!(
                "'{shown}' holds '{first}' and '{second}': name the one to serve"
            )),
            (None, _) => Err(format!(
                "'{shown}' is no model: it has neither a config.pbtxt, nor a version directory, \
                 nor a file that is called model.<suffix>. A directory of models is given as a \
                 repository: --model-repository={shown}"
            )),
        }
    }

    fn of_saved_model(path: PathBuf, name: Option<&str>) -> Result<StandaloneModel, String> {
        let file_name = file_name(&path)?;
        StandaloneModel::of_file(path, file_name, &SAVED_MODEL, name)
    }

    fn of_file(
        path: PathBuf,
        file_name: String,
        kind: &'static FileKind,
        name: Option<&str>,
    ) -> Result<StandaloneModel, String> {
        let file = StandaloneFile {
            name: file_name,
            kind,
        };
        let shown = path.display();
        if kind.needs_config && file.config_beside(&path).is_none() {
            return Err(format!(
                "'{shown}' does not say what its inputs and outputs are: write a configuration \
                 with `input` and `output` beside it, '{}.pbtxt'",
                file.stem()
            ));
        }
        let name = match name {
            Some(name) => String::from(name),
            None => derived_name(&path, &file).ok_or_else(|| {
                format!(
                    "'{shown}' has no name that a model could have: give it one, <name>={shown}"
                )
            })?,
        };
        Ok(StandaloneModel {
            name,
            path,
            form: ModelForm::File(file),
        })
    }
}

impl StandaloneFile {
    /// The name without what says the kind.
    pub(super) fn stem(&self) -> &str {
        match self.name.rsplit_once('.') {
            Some((stem, suffix)) if suffix.eq_ignore_ascii_case(self.kind.suffix) => stem,
            _ => &self.name,
        }
    }

    /// The configuration that lies beside the file at `path`, under its name.
    pub(super) fn config_beside(&self, path: &Path) -> Option<PathBuf> {
        let config = path.with_file_name(format!("{}.pbtxt", self.stem()));
        config.is_file().then_some(config)
    }
}

/// The name of the file; where that only says that it is a model, or which version, the name of the
/// folder that it is in, but for those of versions and of kinds (`<model>/onnx/model.onnx`).
fn derived_name(path: &Path, file: &StandaloneFile) -> Option<String> {
    let is_version = |name: &&str| name.bytes().all(|byte| byte.is_ascii_digit());
    let stem = file.stem();
    let is_bare_version = stem == file.name && is_version(&stem);
    let told = match GENERIC_NAMES.contains(&stem) || is_bare_version {
        true => path
            .ancestors()
            .skip(1)
            .filter_map(|folder| folder.file_name()?.to_str())
            .find(|name| !is_version(name) && !kind::is_suffix(name)),
        false => Some(stem),
    };
    let name = with_usual_letters(told.unwrap_or(stem));
    is_name(&name).then_some(name)
}

/// `name` with an underscore for each run of characters that would have to be escaped in a URL.
fn with_usual_letters(name: &str) -> String {
    let mut usual = String::with_capacity(name.len());
    let mut was_usual = true;
    for character in name.trim_start_matches('.').chars() {
        let is_usual = is_usual(character);
        if is_usual {
            usual.push(character);
        } else if was_usual {
            usual.push('_');
        }
        was_usual = is_usual;
    }
    usual
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && name.chars().all(is_usual)
}

fn is_usual(character: char) -> bool {
    character.is_ascii_alphanumeric() || ['_', '-', '.'].contains(&character)
}

fn has_version(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.take(ENTRIES_MAX).any(|entry| {
        let name = entry.file_name();
        let is_number = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        is_number && entry.path().is_dir()
    })
}

/// Links are kept: what a link leads to may have lost the name. Only where the path ends without a
/// name is it looked up.
fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    match path.file_name() {
        Some(_) => std::path::absolute(path),
        None => fs::canonicalize(path),
    }
}

fn file_name(path: &Path) -> Result<String, String> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(String::from)
        .ok_or_else(|| format!("'{}' has no name that a model could have", path.display()))
}

/// The file by which a SavedModel is known.
const SAVED_MODEL_FILE: &str = "saved_model.pb";

/// Names that files have whatever the model.
const GENERIC_NAMES: [&str; 2] = ["model", "saved_model"];

/// Entries of a directory that are looked at for versions.
const ENTRIES_MAX: usize = 10_000;
