//! A model that is about to be loaded.

use conch_engine::model::registry::ModelId;

use super::loaded::ModelResources;
use super::source::ModelSource;
use crate::repository::model_directory::ModelCandidate;

/// A model that is to be loaded.
#[derive(Clone)]
pub(super) struct LoadPlan {
    pub(super) id: ModelId,
    pub(super) candidate: ModelCandidate,
    pub(super) source: ModelSource,
    pub(super) resources: ModelResources,
}

impl LoadPlan {
    /// `message` with the model's name in place of the temporary directory that the model is in, if
    /// it is in one: where that is, and which process made it, is nothing for clients.
    pub(super) fn without_temporary_path(&self, message: &str) -> String {
        let resources = &self.resources;
        match resources.files.is_some() || resources.copy.is_some() {
            true => message.replace(&*self.candidate.path.to_string_lossy(), &self.id.name),
            false => message.to_owned(),
        }
    }
}
