//! What a check found, as a value.

use std::path::{Path, PathBuf};

use conch_engine::model::registry::ModelId;
use serde::{Serialize, Serializer};

use crate::json::to_json;

/// What a check found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    #[serde(serialize_with = "paths")]
    pub repositories: Vec<PathBuf>,
    /// What is wrong with the repositories themselves.
    pub errors: Vec<CheckFault>,
    /// By name.
    pub models: Vec<ModelReport>,
}

/// What a check found of one model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelReport {
    /// Where it lies.
    #[serde(serialize_with = "path_text")]
    pub repository: PathBuf,
    pub name: String,
    /// Those that its policy chooses, as far as they are known.
    pub versions: Vec<i64>,
    pub state: CheckState,
    pub errors: Vec<CheckFault>,
    /// What is no error, and still worth a look.
    pub notes: Vec<String>,
    #[serde(skip)]
    pub id: ModelId,
    #[serde(skip)]
    pub(super) directory: PathBuf,
    /// Its configuration could be read, so that a backend may have its say.
    #[serde(skip)]
    pub(super) is_loadable: bool,
}

/// What is to be said of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CheckState {
    /// Nothing is wrong as far as it was looked at.
    Ok,
    /// It was loaded.
    Ready,
    Failed,
}

/// One reason why a model, or a repository, is no good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckFault {
    /// The file or directory that it is about.
    #[serde(serialize_with = "some_path")]
    pub file: Option<PathBuf>,
    /// Counted from 1; columns count bytes.
    pub line: Option<usize>,
    pub column: Option<usize>,
    pub message: String,
}

impl CheckReport {
    pub fn is_good(&self) -> bool {
        self.errors.is_empty() && self.models.iter().all(ModelReport::is_good)
    }

    /// The report as a JSON document.
    pub fn to_json(&self) -> String {
        to_json(self)
    }
}

impl ModelReport {
    pub fn is_good(&self) -> bool {
        self.state != CheckState::Failed
    }
}

impl CheckFault {
    /// A fault of a file or directory as a whole.
    pub(super) fn of(file: impl Into<PathBuf>, message: impl Into<String>) -> CheckFault {
        CheckFault {
            file: Some(file.into()),
            message: message.into(),
            ..CheckFault::default()
        }
    }
}

fn path_text<S: Serializer>(path: &Path, target: S) -> Result<S::Ok, S::Error> {
    target.serialize_str(&path.to_string_lossy())
}

fn some_path<S: Serializer>(path: &Option<PathBuf>, target: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => target.serialize_str(&path.to_string_lossy()),
        None => target.serialize_none(),
    }
}

fn paths<S: Serializer>(paths: &[PathBuf], target: S) -> Result<S::Ok, S::Error> {
    target.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}
