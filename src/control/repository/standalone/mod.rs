//! Models that lie in no repository: files and folders named on the command line. They are laid
//! out as a private repository of links, so that everything else finds them where models are.
//!
//! Reads directories and writes links, at the start only. That a folder may hold thousands of other
//! files, and that models lie wherever somebody downloaded them to, is why the folder itself does
//! not become the model's.

mod kind;
mod model;
mod private_directory;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use conch_engine::Error;
use conch_log as log;

use kind::SiblingFiles;
pub use model::StandaloneModel;
use model::{ModelForm, StandaloneFile};
use private_directory::PrivateDirectory;

/// The models that the words of a command line name.
///
/// # Errors
/// What is wrong with a word, or that two of them are the same model.
pub fn standalone_models(words: &[String]) -> Result<Vec<StandaloneModel>, String> {
    let mut models: BTreeMap<String, StandaloneModel> = BTreeMap::new();
    for word in words {
        let model = StandaloneModel::find(word)?;
        if let Some(other) = models.get(&model.name) {
            return Err(format!(
                "'{}' and '{}' would both be model '{}'. Name one of them: <name>={}",
                other.path.display(),
                model.path.display(),
                model.name,
                model.path.display()
            ));
        }
        models.insert(model.name.clone(), model);
    }
    Ok(models.into_values().collect())
}

/// A repository of links to models, which goes with the value.
#[derive(Debug)]
pub struct StandaloneRepository {
    folder: PrivateDirectory,
}

impl StandaloneRepository {
    /// Makes the repository below `parent`. With `expands` the configurations of the models may
    /// name environment variables.
    ///
    /// # Errors
    /// INTERNAL if the system refuses it; what is wrong with a model's configuration.
    pub fn lay_out(
        models: &[StandaloneModel],
        parent: &Path,
        expands: bool,
    ) -> Result<StandaloneRepository, Error> {
        let refused = |cause: io::Error| {
            Error::internal(format!(
                "cannot lay out models in a folder of '{}': {cause}",
                parent.display()
            ))
        };
        let folder = PrivateDirectory::create(parent).map_err(refused)?;
        for model in models {
            let place = folder.contents().join(&model.name);
            match &model.form {
                ModelForm::Directory => symlink(&model.path, &place).map_err(refused)?,
                ModelForm::File(file) => {
                    let config = config_text(model, file, expands)?;
                    lay_out_file(&model.path, file, &place, &config).map_err(refused)?;
                }
            }
            log::info!("model '{}' is '{}'", model.name, model.path.display());
        }
        Ok(StandaloneRepository { folder })
    }

    /// The repository's directory.
    pub fn path(&self) -> PathBuf {
        self.folder.contents()
    }
}

/// Makes the directory of a model that is one file.
fn lay_out_file(path: &Path, file: &StandaloneFile, place: &Path, config: &str) -> io::Result<()> {
    let version = place.join("1");
    fs::create_dir_all(&version)?;
    fs::write(place.join("config.pbtxt"), config)?;
    symlink(path, version.join(&file.name))?;
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    for name in names_beside(folder, file) {
        match symlink(folder.join(&name), version.join(&name)) {
            Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
            _ => {}
        }
    }
    Ok(())
}

/// What of `folder` belongs to `file`. What cannot be read belongs to nothing.
fn names_beside(folder: &Path, file: &StandaloneFile) -> Vec<OsString> {
    if file.kind.beside == SiblingFiles::Nothing {
        return Vec::new();
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<OsString> = entries
        .take(LOOKS_MAX)
        .map(|entry| entry.file_name())
        .filter(|name| !name.as_encoded_bytes().starts_with(b".") && *name != *file.name)
        .filter(|name| belongs(&folder.join(name), file.kind.beside))
        .collect();
    let stem = file.stem().as_bytes();
    if file.kind.beside == SiblingFiles::SameStem || names.len() > FILES_MAX {
        names.retain(|name| name.as_encoded_bytes().starts_with(stem));
        names.truncate(FILES_MAX);
    }
    names
}

fn belongs(path: &Path, beside: SiblingFiles) -> bool {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            beside == SiblingFiles::Package && path.join("__init__.py").is_file()
        }
        Ok(metadata) => metadata.is_file(),
        Err(_) => false,
    }
}

/// The configuration of a model that is one file: its own, if one lies beside it, and what that
/// leaves open of what the file's name says.
fn config_text(
    model: &StandaloneModel,
    file: &StandaloneFile,
    expands: bool,
) -> Result<String, Error> {
    let kind = file.kind;
    let own = file.config_beside(&model.path);
    let (mut text, given) = match &own {
        Some(path) => {
            let given = conch_config::load_file(path, expands)?;
            let text = fs::read_to_string(path).map_err(|cause| {
                Error::internal(format!("failed to read '{}': {cause}", path.display()))
            })?;
            log::info!(
                "model '{}' has its configuration from '{}'",
                model.name,
                path.display()
            );
            (text + "\n", given)
        }
        None => Default::default(),
    };
    let has_type = given.parameters.contains_key(MODEL_TYPE);
    let fields = [
        ("backend", kind.backend, given.backend.is_empty()),
        ("platform", kind.platform, given.platform.is_empty()),
        (
            "default_model_filename",
            file.name.as_str(),
            given.default_model_filename.is_empty(),
        ),
    ];
    for (field, value, is_open) in fields {
        if is_open && !value.is_empty() {
            text.push_str(&format!("{field}: {}\n", quoted(value)));
        }
    }
    if !has_type && !kind.model_type.is_empty() {
        let value = quoted(kind.model_type);
        text.push_str(&format!(
            "parameters {{ key: \"{MODEL_TYPE}\" value {{ string_value: {value} }} }}\n"
        ));
    }
    Ok(text)
}

/// As a string of the text format. A dollar sign is written by its number, as it could begin the
/// name of an environment variable.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '$' => quoted.push_str("\\044"),
            character if character.is_ascii_control() => {
                quoted.push_str(&format!("\\{:03o}", u32::from(character)));
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// The parameter by which the fil backend tells formats apart.
const MODEL_TYPE: &str = "model_type";

/// Entries of a file's folder that are looked at, and files that are linked because they lie there.
/// Weights in a file per tensor are some hundred.
const LOOKS_MAX: usize = 100_000;
const FILES_MAX: usize = 4_096;
