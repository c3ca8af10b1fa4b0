//! What loans need to know of their model. Shared, and free of any tie to the plug-in, so that a request that outlives its model
//! stays sound.

use std::ffi::CString;
use std::sync::Arc;

use conch_config::{Model, TensorSpec};
use conch_memory::{Budget, Pool};

use crate::boundary::c_string;

/// A model's names in both languages, and where its output buffers come from.
pub(crate) struct ModelFacts {
    pub(crate) backend: String,
    pub(crate) is_decoupled: bool,
    pub(crate) pool: Arc<Pool>,
    pub(crate) budget: Arc<Budget>,
    inputs: Names,
    outputs: Names,
}

/// Tensor names, in the order of the configuration.
type Names = Vec<(Arc<str>, CString)>;

impl ModelFacts {
    pub(crate) fn new(
        config: &Model,
        backend: String,
        pool: Arc<Pool>,
        budget: Arc<Budget>,
    ) -> ModelFacts {
        ModelFacts {
            backend,
            is_decoupled: config.is_decoupled,
            pool,
            budget,
            inputs: names(&config.inputs),
            outputs: names(&config.outputs),
        }
    }

    pub(crate) fn input_name(&self, name: &Arc<str>) -> Option<&CString> {
        // Requests carry the configuration's own names, so the first comparison settles it.
        let same = self
            .inputs
            .iter()
            .find(|(known, _)| Arc::ptr_eq(known, name));
        same.or_else(|| self.inputs.iter().find(|(known, _)| known == name))
            .map(|(_, c_name)| c_name)
    }

    pub(crate) fn output_count(&self) -> usize {
        self.outputs.len()
    }

    pub(crate) fn output_name(&self, index: usize) -> Option<&CString> {
        self.outputs.get(index).map(|(_, c_name)| c_name)
    }

    /// The output's name as the rest of the server knows it: shared if it is the configuration's.
    pub(crate) fn shared_output_name(&self, name: &str) -> Arc<str> {
        match self.outputs.iter().find(|(known, _)| &**known == name) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(name),
        }
    }
}

fn names(specs: &[TensorSpec]) -> Names {
    specs
        .iter()
        .map(|spec| (Arc::clone(&spec.name), c_string(&spec.name)))
        .collect()
}
