//! The names of classes of a model version.

use std::ffi::CStr;
use std::path::Path;

use crate::model::labels::Labels;
use crate::{Error, ModelVersion};

impl ModelVersion {
    /// Reads its labels, once, before anybody asks.
    pub fn read_labels(&self, directory: &Path) -> Result<(), Error> {
        let labels = Labels::read(&self.config, directory)?;
        self.labels.get_or_init(|| labels);
        Ok(())
    }

    /// [`ModelVersion::read_labels`] for an ensemble, which `complete` may lend labels of other
    /// models.
    pub fn read_labels_of_ensemble(
        &self,
        directory: &Path,
        complete: impl FnOnce(&mut Labels),
    ) -> Result<(), Error> {
        let mut labels = Labels::read(&self.config, directory)?;
        complete(&mut labels);
        self.labels.get_or_init(|| labels);
        Ok(())
    }

    /// The labels that were read.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.get()
    }

    /// The name of a class of an output.
    pub fn label(&self, output: &str, class: usize) -> Option<&CStr> {
        self.labels.get()?.label(output, class)
    }
}
